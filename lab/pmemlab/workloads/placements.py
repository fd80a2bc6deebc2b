"""The command-line options for the devices that a run's tiers are predicted on or paced as."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import embstore as es
    from pmemlab.model.devices import DeviceModel

__all__ = [
    "AS_HERE",
    "NO_PLACEMENTS",
    "Placement",
    "Placements",
    "add_placements",
    "load_placement",
    "load_placements",
    "on_devices_text",
    "predicted_lines",
]

AS_HERE: Final = "here"
"""The value in place of a device's name for a tier as it is on this computer."""

Placement: TypeAlias = "tuple[DeviceModel | None, ...]"


def add_placements(parser: argparse.ArgumentParser) -> None:
    devices = parser.add_argument_group("devices, of `pmemlab model devices` or by file")
    devices.add_argument(
        "--predict",
        nargs="+",
        default=[],
        metavar="DEVICE,...",
        help="devices to predict the run on, first tier first; each list gives a prediction. "
        f"{AS_HERE}: the tier as it is on this computer",
    )
    devices.add_argument(
        "--rates-only",
        action="store_true",
        help="with --predict: end after the timed steps, without checking rows; a tier of HBM lies "
        "in DRAM",
    )
    devices.add_argument(
        "--here",
        metavar="DEVICE,...",
        help="with --predict: devices that the tiers lie on now, as files of `pmemlab model "
        f"measure`; this computer's memory time then isn't counted as compute. {AS_HERE}: unknown",
    )
    devices.add_argument(
        "--direct-io",
        action="store_true",
        help="reads and writes of SSDHASH past the page cache; required if its tier is on a device",
    )
    devices.add_argument(
        "--paced",
        metavar="DEVICE,...",
        help="devices whose times the tiers are slowed down to, first tier first",
    )


@dataclass(frozen=True)
class Placements:
    """The values of `add_placements`' options; the defaults are those of a command line without
    them.

    predict: placements that the timed steps are predicted on.
    rates_only: the run ends after the timed steps and checks no row.
    here: the devices that the tiers lie on, if known.
    paced: the devices that the tiers are paced as; None if they aren't paced.
    """

    predict: tuple[Placement, ...] = ()
    rates_only: bool = False
    here: Placement = ()
    paced: Placement | None = None

    def applied_to(self, storage: es.StorageOption) -> es.StorageOption:
        """Returns the storage that the run trains on."""
        if self.rates_only:
            from pmemlab.workloads.rated_storage import with_dram_for_hbm

            storage = with_dram_for_hbm(storage)
        return storage if self.paced is None else replace(storage, devices=self.paced)


NO_PLACEMENTS: Final = Placements()


def load_placements(arguments: argparse.Namespace) -> Placements:
    """Returns the placements of a command line with `add_placements` and `add_storage`.

    Raises LabError, which names the option.
    """

    def load(option: str, text: str) -> Placement:
        return load_placement(
            option, text, arguments.storage_type, arguments.direct_io, arguments.rates_only
        )

    return Placements(
        predict=tuple(load("--predict", text) for text in arguments.predict),
        rates_only=arguments.rates_only,
        here=() if arguments.here is None else load("--here", arguments.here),
        paced=None if arguments.paced is None else load("--paced", arguments.paced),
    )


def load_placement(
    option: str, text: str, storage_type: str, direct_io: bool, rates_only: bool
) -> Placement:
    """Returns the devices that `text` names, one per tier. Raises LabError, which names the option.

    direct_io, rates_only: whether the run's command has these options.
    """
    from embstore.options import TIER_KINDS, StorageType, TierKind
    from pmemlab.errors import LabError
    from pmemlab.model.devices import EngineConcurrency, load_device

    kinds = TIER_KINDS[StorageType[storage_type]]
    names = text.split(",")
    if len(names) != len(kinds):
        raise LabError(
            f"{option} {text}: {storage_type} has {len(kinds)} tiers; name a device, or "
            f"{AS_HERE}, for each"
        )
    devices: list[DeviceModel | None] = []
    for name, kind in zip(names, kinds, strict=True):
        if name == AS_HERE:
            devices.append(None)
            continue
        if kind is TierKind.SSDHASH and not direct_io:
            raise LabError(
                f"{option} {text}: what the page cache has costs no disk anything; add --direct-io"
            )
        # LevelDB reads one block after the other.
        concurrency = EngineConcurrency(file_reads=1) if kind is TierKind.LEVELDB else None
        device = load_device(name, concurrency)
        if (kind is TierKind.HBM) != (device.bus is not None):
            raise LabError(
                f"{option} {text}: a tier of HBM is on a GPU, and no other is; {name} is "
                f"{'a' if device.bus is not None else 'no'} GPU"
            )
        if kind is TierKind.HBM and not (option == "--predict" and rates_only):
            raise LabError(
                f"{option} {text}: a GPU is predicted from a run whose tier of HBM lies in DRAM, "
                f"so with --predict and --rates-only alone; else give {AS_HERE} for it"
            )
        is_memory = kind not in (TierKind.HBM, TierKind.SSDHASH, TierKind.LEVELDB)
        if is_memory and not device.is_addressable:
            raise LabError(
                f"{option} {text}: {name} is a disk, which can't be a tier of {kind.value}"
            )
        devices.append(device)
    return tuple(devices)


def predicted_lines(predictions: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """Returns a line per prediction, for a summary. unit: the unit of the rate."""
    return [
        f"  predicted  {prediction['samples_per_s']:,.0f} "
        f"{unit}{on_devices_text(prediction['devices'])}"
        for prediction in predictions
    ]


def on_devices_text(devices: Sequence[str | None]) -> str:
    if not any(devices):
        return ""
    return " on " + ", ".join(device or "this computer" for device in devices)
