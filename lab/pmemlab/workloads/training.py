"""Train Wide & Deep on one storage type, and bring back what happened.

Two runs of the same options on one machine give the same bits, whatever the storage type: that is
what `Run.losses` and `Run.state_sha256` are there to show.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from typing import Final

import numpy as np

import embstore as es
from pmemlab.workloads.auc import roc_auc
from pmemlab.workloads.batches import Source
from pmemlab.workloads.evidence import checkpoint_sha256, examine_tables
from pmemlab.workloads.keeping import Resumed, tell_resumed, tell_trained
from pmemlab.workloads.model_keeping import ModelKeeping
from pmemlab.workloads.placements import NO_PLACEMENTS, Placements
from pmemlab.workloads.predicting import Predicting
from pmemlab.workloads.run import DivergedError, Progress, Run
from pmemlab.workloads.wide_and_deep import DenseLibrary
from pmemlab.workloads.wide_and_deep.network import Network, make_network
from pmemlab.workloads.wide_and_deep.tables import EmbeddingTables, ModelOptions

_EVALUATION_BATCH: Final = 4096
_FINAL_LOSS_STEPS: Final = 10


def train(
    source: Source,
    storage: es.StorageOption,
    *,
    steps: int,
    batch_size: int,
    model: ModelOptions,
    dense: DenseLibrary = "torch",
    keeping: ModelKeeping | None = None,
    checksums_every: int | None = None,
    fill: Callable[[EmbeddingTables], None] = lambda _tables: None,
    warm_up_steps: int = 1,
    placements: Placements = NO_PLACEMENTS,
    bits_only: bool = False,
    progress: Progress = lambda _step, _loss: None,
) -> Run:
    """Train for `steps` batches of `batch_size` rows, then judge on the held-out rows.

    dense: what computes the dense layers.
    keeping: checkpoints on the way, the newest of which it goes on from; `storage` is durable then.
    checksums_every: steps between two that have a checksum, beside the last.
    fill: gives the new tables rows before the first step.
    warm_up_steps: that aren't timed, where there are more.
    placements: with rates_only the run has neither evidence nor an AUC.
    bits_only: for another run to be compared with: nobody looks where its rows lie.

    Raises DataError for unusable data or a checkpoint that it can't go on from, EmbStoreError where
    the engine refuses, LabError for a device that can't do what the run did, and DivergedError
    where there is nothing left to train; the tables are closed then too.
    """
    if keeping:
        keeping.make_folders()
    with EmbeddingTables(storage, model) as tables, ExitStack() as recording:
        fill(tables)
        network = make_network(dense, tables, model)
        losses: list[float] = []
        checksums: dict[int, str] = {}
        first = keeping.restore(tables, network, steps) if keeping else 0
        saves = 0
        if first:
            checksums[first] = checkpoint_sha256(first, tables, network.state())
            tell_resumed(Resumed(first, checksums[first]))
        predicting = (
            recording.enter_context(Predicting(tables, placements.predict, placements.here))
            if placements.predict
            else None
        )
        started = time.perf_counter()
        for batch in islice(source.train_batches(batch_size), first, steps):
            losses.append(network.train(batch))
            if not math.isfinite(losses[-1]):
                raise DivergedError(f"step {first + len(losses)}: the loss is {losses[-1]}")
            done = first + len(losses)
            progress(done, losses[-1])
            if keeping and done < steps:  # who goes on from there must have something to do
                tell_trained(done)
                saves += keeping.keep(tables, network, done)
            if checksums_every and done % checksums_every == 0:
                paused = time.perf_counter()
                checksums[done] = checkpoint_sha256(done, tables, network.state())
                started += time.perf_counter() - paused
            if len(losses) == warm_up_steps and done < steps:
                network.lookup_clock.reset()
                saves = 0
                if predicting:
                    predicting.reset()
                started = time.perf_counter()
        seconds = time.perf_counter() - started
        recording.close()
        clock = network.lookup_clock
        lookups_per_s = clock.rows / clock.seconds
        timed_steps = steps - first
        if timed_steps > warm_up_steps:
            timed_steps -= warm_up_steps
        timed_samples = batch_size * timed_steps
        as_here, *predictions = (
            predicting.predictions(seconds, timed_steps, timed_samples) if predicting else [{}]
        )
        for variable in tables:
            variable.drain()
        # Before the evaluation, whose lookups count for the cache's ranking.
        variables = list(tables)
        exports = (each.export() for each in variables)
        state, evidence = (
            ("", [])
            if placements.rates_only
            else examine_tables(variables, exports, looks=not bits_only)
        )
        if keeping or checksums_every:
            checksums[steps] = checkpoint_sha256(steps, tables, network.state())
        auc, held_out_rows = (None, 0) if placements.rates_only else _evaluate(network, source)
    return Run(
        storage_type=storage.storage_type.name,
        first_step=first,
        saves=saves,
        steps=steps - first,
        samples=(steps - first) * batch_size,
        losses=[loss.hex() for loss in losses],
        loss=float(np.mean(losses[-_FINAL_LOSS_STEPS:])),
        auc=auc,
        held_out_rows=held_out_rows,
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


def _evaluate(network: Network, source: Source) -> tuple[float | None, int]:
    labels = [np.empty(0, np.float32)]
    scores = [np.empty(0, np.float32)]
    for batch in source.held_out_batches(_EVALUATION_BATCH):
        labels.append(batch.labels)
        scores.append(network.predict(batch))
    all_labels = np.concatenate(labels)
    return roc_auc(all_labels, np.concatenate(scores)), len(all_labels)
