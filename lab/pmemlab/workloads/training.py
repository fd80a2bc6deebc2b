"""Train Wide & Deep on one storage type.

Two runs of the same options on one machine give the same bits, whatever the storage type;
`Run.losses` and `Run.state_sha256` show that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

import embstore as es
from pmemlab.workloads.auc import roc_auc
from pmemlab.workloads.batches import Source
from pmemlab.workloads.model_keeping import ModelCheckpoints
from pmemlab.workloads.run import Run
from pmemlab.workloads.steps import RunOptions, TrainingSubject, run_steps
from pmemlab.workloads.wide_and_deep import DenseLibrary
from pmemlab.workloads.wide_and_deep.network import Network, make_network
from pmemlab.workloads.wide_and_deep.tables import EmbeddingTables, ModelOptions

_EVALUATION_BATCH: Final = 4096


def train(
    source: Source,
    storage: es.StorageOption,
    *,
    steps: int,
    batch_size: int,
    model: ModelOptions,
    options: RunOptions,
    dense: DenseLibrary = "torch",
    checkpointing: ModelCheckpoints | None = None,
    fill: Callable[[EmbeddingTables], None] = lambda _tables: None,
    warm_up_steps: int = 1,
) -> Run:
    """Train for `steps` batches of `batch_size` rows, then evaluate on the held-out rows.

    dense: the library of the dense layers.
    checkpointing: regular checkpoints; the run resumes from the newest. REQUIRES: `storage` is
        durable then.
    fill: gives the new tables rows before the first step.

    Raises what `run_steps` does, and DataError for unusable data or a checkpoint that it can't
    resume from. The tables are closed in any case.
    """
    if checkpointing:
        checkpointing.make_folders()
    with EmbeddingTables(storage, model) as tables:
        fill(tables)
        network = make_network(dense, tables, model)
        first = checkpointing.restore(tables, network, steps) if checkpointing else 0
        batches = islice(source.train_batches(batch_size), first, None)
        trained = TrainingSubject(
            list(tables),
            batch_size,
            lambda _step: network.train(next(batches)),
            network.lookup_clock,
            network.state,
            save_if_due=(lambda done: checkpointing.save_if_due(tables, network, done))
            if checkpointing
            else None,
        )
        run = run_steps(trained, storage, range(first, steps), options, warm_up_steps)
        if options.placements.rates_only:
            return run
        # After the tables were examined: these lookups count for the cache's ranking.
        auc, held_out_rows = _evaluate(network, source)
    return replace(run, auc=auc, held_out_rows=held_out_rows)


def _evaluate(network: Network, source: Source) -> tuple[float | None, int]:
    labels = [np.empty(0, np.float32)]
    scores = [np.empty(0, np.float32)]
    for batch in source.held_out_batches(_EVALUATION_BATCH):
        labels.append(batch.labels)
        scores.append(network.predict(batch))
    all_labels = np.concatenate(labels)
    return roc_auc(all_labels, np.concatenate(scores)), len(all_labels)
