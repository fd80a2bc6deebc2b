"""The section on checkpoints saved and loaded, by storage device and format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pmemlab.quantities import known_text
from pmemlab.report.documents import CheckpointArm, Results
from pmemlab.report.drawing.bars import Bar, BarGroup, Part, draw_bars
from pmemlab.report.page import Block, Figure, Fold, Section, Table
from pmemlab.report.sections.looks import ALL_LOOKS, rate_look
from pmemlab.report.sections.scenario_figures import grouped

__all__ = ["checkpoints"]

_TITLE = "Checkpoints on SATA, NVMe and PMem"


@dataclass(frozen=True)
class _Quantity:
    """The quantity of a figure. form: the format of a value.

    second: a second quantity, which stands only in the figure's table.
    """

    name: str
    caption: str
    value: Callable[[CheckpointArm], float | None]
    form: str
    more_is_better: bool = True
    second: tuple[str, Callable[[CheckpointArm], float | None]] | None = None


def _gb_per_s(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / 1e9


_QUANTITIES: Final = (
    _Quantity(
        "save",
        "Saves of {} until the medium has everything, GB/s",
        lambda arm: _gb_per_s(arm.save_bytes_per_s),
        ".2f",
    ),
    _Quantity(
        "cold-load",
        "Loads of {} from the medium until all of it was read, GB/s",
        lambda arm: _gb_per_s(arm.cold_bytes_per_s),
        ".2f",
        second=("warm, GB/s", lambda arm: _gb_per_s(arm.warm_bytes_per_s)),
    ),
    _Quantity(
        "stall",
        "Milliseconds that training waits for a save of {}",
        lambda arm: None if arm.stall_seconds is None else arm.stall_seconds * 1e3,
        ",.0f",
        more_is_better=False,
    ),
)


def checkpoints(results: Results) -> Section:
    """Returns figures for each model, and a table of the checkpoints on emulated media."""
    arms = results.checkpoints
    if not arms:
        missing_note = "No checkpoints were saved and loaded here; `make checkpoints` does it."
        return Section("checkpoints", _TITLE, missing_note=missing_note)
    rated = [arm for arm in arms if arm.kind != "functional-only"]
    models = grouped(rated, lambda arm: arm.model)
    blocks: list[Block] = []
    if models:
        blocks.append(
            "The checkpoint of a model, its optimizer and its schedule, saved and loaded on each "
            "storage device in each format, with the same bytes everywhere. A paced device is this "
            "computer's memory: each save and load did its work here, and waited for as long as "
            "the device's published bandwidth asks for."
        )
    for number, (model, members) in enumerate(models.items()):
        for quantity in _QUANTITIES:
            known = [arm for arm in members if quantity.value(arm) is not None]
            if known:
                name = f"checkpoints-{number}-{quantity.name}"
                blocks.append(_figure(name, model, known, quantity))
    works = [arm for arm in arms if arm.kind == "functional-only"]
    if works:
        names = [(arm.medium, arm.format, arm.model) for arm in works]
        table = Table(
            "Checkpoints that work on emulated media", ("medium", "format", "model"), names
        )
        blocks.append(Fold(f"{table.caption}, whose rates would say nothing", table))
    return Section("checkpoints", _TITLE, blocks)


def _figure(name: str, model: str, arms: Sequence[CheckpointArm], quantity: _Quantity) -> Figure:
    """Draws a quantity of a model's checkpoints. REQUIRES: each arm has the quantity."""
    media = grouped(arms, _medium)
    groups = [
        BarGroup(
            medium,
            [
                Bar(
                    arm.format,
                    [Part(_value(arm, quantity), rate_look(arm.kind, predicted=False))],
                    format(_value(arm, quantity), quantity.form),
                )
                for arm in members
            ],
        )
        for medium, members in media.items()
    ]
    caption = quantity.caption.format(model)
    choose = max if quantity.more_is_better else min
    best = choose(arms, key=lambda arm: _value(arm, quantity))
    alt = (
        f"{caption}: {len(arms)} formats on {len(media)} media. The best is {best.format} on "
        f"{_medium(best)} with {format(_value(best, quantity), quantity.form)}."
    )
    second = quantity.second
    table = Table(
        caption,
        (
            "medium",
            "format",
            quantity.name.replace("-", " "),
            *(second[:1] if second else ()),
            "is",
        ),
        [
            (
                _medium(arm),
                arm.format,
                format(_value(arm, quantity), quantity.form),
                *([known_text(second[1](arm), quantity.form)] if second else []),
                "modelled, paced" if arm.kind == "modelled" else arm.kind,
            )
            for arm in arms
        ],
        numeric=(2, 3) if second else (2,),
    )
    return Figure(draw_bars(name, alt, groups, ALL_LOOKS), table)


def _value(arm: CheckpointArm, quantity: _Quantity) -> float:
    value = quantity.value(arm)
    assert value is not None
    return value


def _medium(arm: CheckpointArm) -> str:
    if arm.device is None:
        return f"{arm.medium}, of this computer"
    return arm.device if arm.medium == arm.device else f"{arm.medium} paced as {arm.device}"
