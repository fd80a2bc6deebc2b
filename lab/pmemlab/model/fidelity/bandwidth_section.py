"""The section on devices' bandwidth: published figures, each predicted without itself."""

from __future__ import annotations

from collections.abc import Sequence

from pmemlab.model.devices import device_names, load_device
from pmemlab.model.devices.memory_device import MemoryDevice
from pmemlab.model.fidelity.bandwidth import LeftOutPrediction, predict_left_out
from pmemlab.model.fidelity.rows import Row, Section

__all__ = ["bandwidth_section"]

_NEAR_PERCENT = 10.0
_LEFT_OUT_TEXTS = {"size": "without its access size", "threads": "without its number of threads"}


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
