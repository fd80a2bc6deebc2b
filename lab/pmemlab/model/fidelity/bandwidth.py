"""Cross-validates a device's curves: predicts each published figure from a curve without it.

A figure that is left out is predicted from the rest of its curve. Figures at the ends of a curve
are not predicted, since no figures lie beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pmemlab.model.devices.curves import BandwidthCurve, LoadedLatencyCurve
from pmemlab.model.devices.device_file import Curve, DeviceFile

__all__ = ["LeftOutKind", "LeftOutPrediction", "predict_left_out"]

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
