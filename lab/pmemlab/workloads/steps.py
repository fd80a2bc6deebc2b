"""The loop that trains, times, predicts, checkpoints and checks a run's steps, for any workload."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.workloads.evidence import TableEvidence, checkpoint_sha256, examine_tables
from pmemlab.workloads.keeping import ResumePoint, report_resumed, report_trained
from pmemlab.workloads.placements import NO_PLACEMENTS, Placements
from pmemlab.workloads.predicting import Predicting
from pmemlab.workloads.run import DivergedError, LookupClock, Run

__all__ = ["RunOptions", "TrainingSubject", "run_steps"]

_FINAL_LOSS_STEPS: Final = 10

Export = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, other than those of its training.

    checksums_every: steps between two checksums; the last step has one too. placements: with
    rates_only the run has no evidence, and nothing is checked. bits_only: for a reference run: its
    rows aren't looked for. progress: called after each step with the step's number and its loss.
    """

    checksums_every: int | None = None
    placements: Placements = NO_PLACEMENTS
    bits_only: bool = False
    progress: Callable[[int, float], None] = lambda _step, _loss: None


@dataclass(frozen=True)
class TrainingSubject:
    """A model or tables that `run_steps` trains.

    tables: open variables, which stay open. samples: number per step. train: trains the step of a
    given number, from 0, and returns its loss. lookup_clock: runs in `train`. state: returns the
    arrays that lie in no table. save_if_due: makes a checkpoint after the given number of steps if
    one is due, and returns whether one was; None: no checkpoints. exports: returns the tables'
    exports at the end.
    """

    tables: Sequence[es.EmbeddingVariable]
    samples: int
    train: Callable[[int], float]
    lookup_clock: LookupClock
    state: Callable[[], Export] = dict
    save_if_due: Callable[[int], bool] | None = None
    exports: Callable[[], Iterable[Export]] | None = None


def run_steps(
    trained: TrainingSubject,
    storage: es.StorageOption,
    steps: range,
    options: RunOptions,
    warm_up_steps: int = 1,
) -> Run:
    """Trains these steps, one after the other, and returns the run's result.

    steps: one or more; the first is above 0 if a checkpoint was restored. warm_up_steps: the number
    of first steps that aren't timed, if there are more steps than that.

    Raises DivergedError if a loss is not finite, EmbStoreError for an error of the engine, LabError
    if a device can't do what the run did, or if rows can't be looked for; and what `trained`
    raises.
    """
    first, last = steps.start, steps.stop
    tables, placements = trained.tables, options.placements
    timed_from = first + warm_up_steps if warm_up_steps < len(steps) else first
    checksums: dict[int, str] = {}

    def checksum(done: int) -> None:
        checksums[done] = checkpoint_sha256(done, tables, trained.state())

    if trained.save_if_due and first:
        checksum(first)
        report_resumed(ResumePoint(first, checksums[first]))
    predicting = (
        Predicting(tables, placements.predict, placements.here) if placements.predict else None
    )
    losses: list[float] = []
    saves = 0
    with predicting or nullcontext():
        started = time.perf_counter()
        for step in steps:
            done = step + 1
            losses.append(trained.train(step))
            if not math.isfinite(losses[-1]):
                raise DivergedError(f"step {done}: the loss is {losses[-1]}")
            options.progress(done, losses[-1])
            if trained.save_if_due and done < last:  # a resumed run needs a step to train
                report_trained(done)
                saves += trained.save_if_due(done)
            if options.checksums_every and done % options.checksums_every == 0:
                paused = time.perf_counter()
                checksum(done)
                started += time.perf_counter() - paused
            if done == timed_from:
                trained.lookup_clock.reset()
                saves = 0
                if predicting:
                    predicting.reset()
                started = time.perf_counter()
        seconds = max(time.perf_counter() - started, 1e-9)
    timed_steps = last - timed_from
    timed_samples = trained.samples * timed_steps
    lookups_per_s = trained.lookup_clock.per_s
    as_here, *predictions = (
        predicting.predictions(seconds, timed_steps, timed_samples) if predicting else [{}]
    )
    for variable in tables:
        variable.drain()
    state = ""
    evidence: list[TableEvidence] = []
    if not placements.rates_only:
        exports = trained.exports() if trained.exports else (each.export() for each in tables)
        state, evidence = examine_tables(tables, exports, search=not options.bits_only)
    if trained.save_if_due or options.checksums_every:
        checksum(last)
    return Run(
        storage_type=storage.storage_type.name,
        first_step=first,
        saves=saves,
        steps=len(steps),
        samples=len(steps) * trained.samples,
        losses=[loss.hex() for loss in losses],
        loss=float(np.mean(losses[-_FINAL_LOSS_STEPS:])),
        train_seconds=seconds,
        samples_per_s=timed_samples / seconds,
        lookups_per_s=lookups_per_s,
        state_sha256=state,
        tables=evidence,
        checksums=checksums,
        devices=[device.name if device else None for device in storage.tier_devices()],
        step_ms=as_here.get("step_ms", {}),
        predictions=predictions,
    )
