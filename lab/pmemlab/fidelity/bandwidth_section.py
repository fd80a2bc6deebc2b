"""The section on devices' bandwidth: what was published, foretold without itself."""

from __future__ import annotations

from collections.abc import Sequence

from pmemlab.devices import device_names, load_device
from pmemlab.devices.memory_device import MemoryDevice
from pmemlab.fidelity.bandwidth import Foretold, foretell_left_out
from pmemlab.fidelity.rows import Row, Section

__all__ = ["bandwidth_section"]

_AIM = 10.0
_GONE = {"size": "no figure of its size", "threads": "none of its number of threads"}


def bandwidth_section() -> Section:
    """A row for each curve of each memory device that comes with the lab."""
    curves: dict[tuple[str, str, str, str], list[Foretold]] = {}
    for name in device_names():
        device = load_device(name)
        if not isinstance(device, MemoryDevice):
            continue
        for figure in foretell_left_out(device.file):
            if figure.left_out in _GONE:
                key = (figure.device, figure.pattern, figure.operation, figure.left_out)
                curves.setdefault(key, []).append(figure)
    return Section(
        "Bandwidth and loaded latency of devices",
        "Each published figure that lies between others is foretold from its device's curve "
        "without all figures of its access size, or of its number of threads. Shown is, of each "
        "curve, the figure with the median error; of two middle ones, that with the larger.",
        tuple(
            _row(f"{device}, {pattern} {operation}, {_GONE[gone]}", figures)
            for (device, pattern, operation, gone), figures in curves.items()
        ),
        (
            "Sequential flushed stores on six modules were published for 1, 2, 4, 8, 12 and 16 "
            "threads, and 12 get the most. What 8 or 12 get doesn't follow from the others; in "
            "between, the device file is no better than that.",
            "The worst figures lie where a curve jumps between neighbours, as Optane's do at its "
            "media line of 256 bytes: what is on either side doesn't tell of it.",
        ),
    )


def _row(name: str, figures: Sequence[Foretold]) -> Row:
    by_error = sorted(figures, key=lambda figure: abs(figure.error))
    median, worst = by_error[len(by_error) // 2], by_error[-1]
    near = sum(abs(figure.error) <= _AIM / 100 for figure in figures) / len(figures)
    size = "" if worst.size_bytes is None else f"{worst.size_bytes:,} bytes, "
    return Row(
        name,
        median.published,
        median.predicted,
        median.unit,
        _AIM,
        f"of {len(figures)}, {near:.0%} within {_AIM:g} %; worst {worst.error:+.0%} at {size}"
        f"{worst.threads} threads",
    )
