"""Predicts times and costs, and counts the accesses that they need, each kind once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pmemlab.model.openembedding.accesses import (
    CacheAccesses,
    TouchedRows,
    count_cache_accesses,
    count_touched_rows,
)
from pmemlab.model.openembedding.fit import FitInputs
from pmemlab.model.openembedding.model import Engine, EpochModel
from pmemlab.model.openembedding.options import DEFAULT_MINUTES
from pmemlab.model.openembedding.setup import Setup

__all__ = ["Predictor", "Question"]

_REFERENCE_GPUS: Final = 4
_COUNTED_MINUTES: Final = 40.0


@dataclass(frozen=True)
class Question:
    """The parameters of a prediction. cache_gb None: the set-up's cache."""

    gpus: int
    cache_gb: float | None = None
    skew: float = 1.0
    minutes: float = DEFAULT_MINUTES


class Predictor:
    """Predicts from the set-up and the four fitted times, and from no other published time."""

    def __init__(
        self, setup: Setup, inputs: FitInputs, on_count: Callable[[str], object] = lambda _: None
    ) -> None:
        """on_count: called with a description before each count, which takes seconds."""
        self.setup = setup
        self.model = EpochModel.from_setup(setup, inputs)
        self._on_count = on_count
        self._accesses: dict[tuple[int, float, float], CacheAccesses] = {}
        self._touched: dict[float, tuple[float, TouchedRows]] = {}

    def cache_accesses(self, question: Question) -> CacheAccesses:
        """Returns the counted accesses. Raises LabError for a cache that can't be counted."""
        cache_gb = self.setup.servers.cache_gb if question.cache_gb is None else question.cache_gb
        key = question.gpus, cache_gb, question.skew
        if key not in self._accesses:
            self._on_count(
                f"a cache of {cache_gb:g} GB, {question.gpus} GPUs, skew {question.skew:g}"
            )
            workload = self.setup.workload
            self._accesses[key] = count_cache_accesses(
                workload.rows,
                self.setup.cached_rows(cache_gb),
                workload.gpu_accesses * question.gpus,
                question.skew,
            )
        return self._accesses[key]

    def plain(self, engine: Engine, question: Question) -> float:
        """Returns an epoch's time without checkpoints, relative to DRAM-PS on 4 GPUs
        without them.
        """
        return self.model.relative_time(
            engine, question.gpus, self._with_cache_accesses(engine, question)
        )

    def slowdown(
        self, engine: Engine, question: Question, *, incremental: bool | None = None
    ) -> float:
        """Returns the slowdown by checkpoints; see `EpochModel.checkpoint_slowdown`."""
        return self.model.checkpoint_slowdown(
            engine,
            question.gpus,
            question.minutes,
            self._touched_rows(question),
            self._with_cache_accesses(engine, question),
            incremental=incremental,
        )

    def with_checkpoints(self, engine: Engine, question: Question) -> float:
        """Returns an epoch's time with checkpoints, relative to DRAM-PS on 4 GPUs with a checkpoint
        every 20 minutes.
        """
        reference = Question(_REFERENCE_GPUS)
        return (
            self.plain(engine, question)
            * self.slowdown(engine, question)
            / self.plain(Engine.DRAM_PS, reference)
            / self.slowdown(Engine.DRAM_PS, reference)
        )

    def epoch_dollars(self, engine: Engine, question: Question, reference_hours: float) -> float:
        """Returns the servers' cost of an epoch with checkpoints. reference_hours: an epoch of
        DRAM-PS on 4 GPUs with a checkpoint every 20 minutes.
        """
        servers = self.setup.servers
        dollars_per_hour = (
            servers.dram_dollars_per_hour
            if engine is Engine.DRAM_PS
            else servers.pmem_dollars_per_hour
        )
        return self.with_checkpoints(engine, question) * reference_hours * dollars_per_hour

    def _with_cache_accesses(self, engine: Engine, question: Question) -> CacheAccesses | None:
        return self.cache_accesses(question) if engine.has_cache else None

    def _touched_rows(self, question: Question) -> TouchedRows:
        minutes = max(question.minutes, _COUNTED_MINUTES)
        max_rows = self.model.pulled_rows(
            Engine.DRAM_PS, question.gpus, minutes
        )  # the fastest engine
        counted = self._touched.get(question.skew)
        if counted is None or counted[0] < max_rows:
            self._on_count(f"rows touched between checkpoints, skew {question.skew:g}")
            touched = count_touched_rows(self.setup.workload.rows, max_rows, question.skew)
            counted = self._touched[question.skew] = max_rows, touched
        return counted[1]
