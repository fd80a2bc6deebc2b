"""The section on devices' bandwidth: each published figure, predicted from a curve without it.

A figure that is left out is predicted from the rest of its curve. Figures at the ends of a curve
are not predicted, since no figures lie beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pmemlab.model.devices import device_names, load_device
from pmemlab.model.devices.curves import BandwidthCurve, LoadedLatencyCurve
from pmemlab.model.devices.device_file import Curve, DeviceFile
from pmemlab.model.devices.memory_device import MemoryDevice
from pmemlab.model.fidelity.rows import Row, Section

__all__ = ["LeftOutPrediction", "bandwidth_section", "predict_left_out"]

_NEAR_PERCENT = 10.0
_LEFT_OUT_TEXTS = {"size": "without its access size", "threads": "without its number of threads"}

LeftOutKind = Literal["figure", "size", "threads"]
"""The figures left out together: one, all of its access size, or all of its number of threads."""


@dataclass(frozen=True)
class LeftOutPrediction:
    """A published figure, and the model's prediction without it.

    unit: MB/s, or ns for latency under load. size_bytes: None if the figure has no access size.
    """

    device: str
    operation: str
    pattern: str
    left_out: LeftOutKind
    size_bytes: int | None
    threads: int
    published: float
    predicted: float
    unit: str

    @property
    def error(self) -> float:
        """The relative error; above 0 if the prediction is too high."""
        return self.predicted / self.published - 1


def predict_left_out(file: DeviceFile) -> Iterator[LeftOutPrediction]:
    """Yields a prediction for every figure of the file's curves that lies between others."""
    for curve, bandwidth in file.bandwidth.items():
        for left_out in ("figure", "size", "threads"):
            yield from _predict_bandwidth(file, curve, bandwidth, left_out)
    for curve, loaded in file.loaded_latency.items():
        yield from _predict_loaded_latency(file, curve, loaded)


def _predict_bandwidth(
    file: DeviceFile, curve: Curve, bandwidth: BandwidthCurve, left_out: LeftOutKind
) -> Iterator[LeftOutPrediction]:
    for size_bytes, threads, published in bandwidth.points():
        rest = bandwidth.without(
            None if left_out == "threads" else size_bytes, None if left_out == "size" else threads
        )
        if rest is None or not rest.covers(size_bytes, threads):
            continue
        predicted = rest.mb_per_s_at(size_bytes, threads)
        yield LeftOutPrediction(
            file.name, *curve, left_out, size_bytes, threads, published, predicted, "MB/s"
        )


def _predict_loaded_latency(
    file: DeviceFile, curve: Curve, loaded: LoadedLatencyCurve
) -> Iterator[LeftOutPrediction]:
    """Predicts all figures of a number of threads from those of fewer and of more threads."""
    for i in range(1, len(loaded.rows) - 1):
        row = loaded.rows[i]
        rest = LoadedLatencyCurve([*loaded.rows[:i], *loaded.rows[i + 1 :]])
        for mb_per_s, published in zip(row.mb_per_s, row.latency_ns, strict=True):
            predicted = rest.latency_ns(mb_per_s, row.threads)
            yield LeftOutPrediction(
                file.name, *curve, "threads", None, row.threads, published, predicted, "ns"
            )


def bandwidth_section() -> Section:
    """Returns a section with a row for each curve of each memory device that comes with the lab."""
    curves: dict[tuple[str, str, str, str], list[LeftOutPrediction]] = {}
    for name in device_names():
        device = load_device(name)
        if not isinstance(device, MemoryDevice):
            continue
        for figure in predict_left_out(device.file):
            if figure.left_out in _LEFT_OUT_TEXTS:
                key = (figure.device, figure.pattern, figure.operation, figure.left_out)
                curves.setdefault(key, []).append(figure)
    return Section(
        "Bandwidth and loaded latency of devices",
        "Each published figure that lies between others is predicted from its device's curve after "
        "all figures of its access size, or of its number of threads, were removed. A row shows "
        "one curve's figure with the median error (of two middle figures, the one with the larger "
        "error). Half of a curve's figures have larger errors, so these rows don't count as "
        "figures within an aim.",
        tuple(
            _row(f"{device}, {pattern} {operation}, {_LEFT_OUT_TEXTS[left_out]}", figures)
            for (device, pattern, operation, left_out), figures in curves.items()
        ),
        (
            "Sequential flushed stores on six modules were published for 1, 2, 4, 8, 12 and 16 "
            "threads; 12 threads get the most. The figures of 8 and 12 threads don't follow from "
            "the others, so between these thread counts the device file is no more accurate.",
            "The worst errors are where a curve jumps between neighbouring points, as Optane's "
            "curves do at its media line of 256 bytes: the points on either side don't show the "
            "jump.",
        ),
        headline=_headline([figure for figures in curves.values() for figure in figures]),
    )


def _headline(figures: Sequence[LeftOutPrediction]) -> str:
    worst = max(figures, key=lambda figure: abs(figure.error))
    return (
        f"Of {len(figures):,} published figures of devices' curves, each predicted without itself, "
        f"{_share_near(figures):.0%} are within {_NEAR_PERCENT:g} %; the worst error is "
        f"{worst.error:+.0%} "
        f"({worst.device}, {worst.pattern} {worst.operation}, {_access_text(worst)})."
    )


def _share_near(figures: Sequence[LeftOutPrediction]) -> float:
    return sum(abs(figure.error) <= _NEAR_PERCENT / 100 for figure in figures) / len(figures)


def _access_text(figure: LeftOutPrediction) -> str:
    size = "" if figure.size_bytes is None else f"{figure.size_bytes:,} bytes, "
    return f"{size}{figure.threads} thread{'s' * (figure.threads != 1)}"


def _row(name: str, figures: Sequence[LeftOutPrediction]) -> Row:
    by_error = sorted(figures, key=lambda figure: abs(figure.error))
    median, worst = by_error[len(by_error) // 2], by_error[-1]
    return Row(
        name,
        median.published,
        median.predicted,
        median.unit,
        note=f"of {len(figures)}, {_share_near(figures):.0%} within {_NEAR_PERCENT:g} %; worst "
        f"{worst.error:+.0%} at {_access_text(worst)}",
    )
