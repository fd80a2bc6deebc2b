"""The sections of the page, in order. A section without data names the command that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pmemlab.report.documents import Results
from pmemlab.report.page import Section
from pmemlab.report.sections.checkpoints import checkpoints
from pmemlab.report.sections.fidelity import fidelity
from pmemlab.report.sections.hit_rates import hit_rates
from pmemlab.report.sections.memory_mode import memory_mode
from pmemlab.report.sections.prices import prices
from pmemlab.report.sections.proofs import proofs
from pmemlab.report.sections.rates import rates
from pmemlab.report.sections.step_times import step_times
from pmemlab.report.sections.works import works

__all__ = ["SECTIONS"]

SECTIONS: Final[Sequence[Callable[[Results], Section]]] = (
    rates,
    step_times,
    hit_rates,
    memory_mode,
    prices,
    checkpoints,
    fidelity,
    works,
    proofs,
)
