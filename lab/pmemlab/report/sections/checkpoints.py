"""Checkpoints saved and loaded, by medium and format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pmemlab.report.documents import CheckpointArm, Results
from pmemlab.report.drawing.bars import Bar, BarGroup, Part, draw_bars
from pmemlab.report.page import Block, Figure, Fold, Section, Table
from pmemlab.report.sections.looks import ALL, look_of

__all__ = ["checkpoints"]

_TITLE = "Checkpoints on SATA, NVMe and PMem"
_RATES: Sequence[tuple[str, Callable[[CheckpointArm], float | None]]] = (
    ("save", lambda arm: arm.save_bytes_per_s),
    ("cold load", lambda arm: arm.cold_bytes_per_s),
    ("warm load", lambda arm: arm.warm_bytes_per_s),
)


def checkpoints(results: Results) -> Section:
    """A figure a model; what only works on emulated media is named in a table."""
    arms = results.checkpoints
    if not arms:
        lacking = (
            "No checkpoints were measured here; `python -m pmemlab.workloads.checkpoint_io "
            "--medium disk=/tmp --json > results/checkpoints.json` does it."
        )
        return Section("checkpoints", _TITLE, lacking=lacking)
    models: dict[str, list[CheckpointArm]] = {}
    for arm in arms:
        if arm.kind != "functional-only":
            models.setdefault(arm.model, []).append(arm)
    blocks: list[Block] = [
        "Gigabytes a second at which a model's checkpoint is saved until the medium has it, and "
        "loaded until all of it was read: cold from the medium, warm from memory."
    ]
    blocks += [
        _figure(f"checkpoints-{number}", model, members)
        for number, (model, members) in enumerate(models.items())
    ]
    works = [arm for arm in arms if arm.kind == "functional-only"]
    if works:
        names = [(arm.medium, arm.format, arm.model) for arm in works]
        table = Table(
            "Checkpoints that work on emulated media", ("medium", "format", "model"), names
        )
        blocks.append(Fold(f"{table.caption}, whose rates would say nothing", table))
    return Section("checkpoints", _TITLE, blocks)


def _figure(name: str, model: str, arms: Sequence[CheckpointArm]) -> Figure:
    groups = [
        BarGroup(
            f"{what}, GB/s",
            [
                Bar(
                    f"{_medium(arm)} · {arm.format}",
                    [Part(rate / 1e9, look_of(arm.kind, predicted=False))],
                    f"{rate / 1e9:.2f}",
                )
                for arm in arms
                if (rate := rate_of(arm)) is not None
            ],
        )
        for what, rate_of in _RATES
    ]
    groups = [group for group in groups if group.bars]
    caption = f"Checkpoints of {model}, GB/s"
    saves = [arm for arm in arms if arm.save_bytes_per_s is not None]
    alt = f"{caption}: saves, cold loads and warm loads of {len(arms)} media and formats."
    if saves:
        best = max(saves, key=lambda arm: arm.save_bytes_per_s or 0)
        alt += f" The fastest save is {best.format} on {_medium(best)}."
    table = Table(
        caption,
        ("medium", "format", *(what for what, _ in _RATES), "rates are"),
        [
            (
                _medium(arm),
                arm.format,
                *("–" if (r := of(arm)) is None else f"{r / 1e9:.2f}" for _, of in _RATES),
                arm.kind,
            )
            for arm in arms
        ],
        numeric=(2, 3, 4),
    )
    return Figure(draw_bars(name, alt, groups, ALL), f"{caption}.", table)


def _medium(arm: CheckpointArm) -> str:
    return f"{arm.medium} paced as {arm.device}" if arm.device else arm.medium
