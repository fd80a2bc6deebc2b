"""Train Wide & Deep on one storage type, and bring back what happened.

Two runs of the same options on one machine give the same bits, whatever the storage type: that is
what `Run.losses` and `Run.state_sha256` are there to show.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import embstore as es
from pmemlab.placement import backing_file, page_nodes
from pmemlab.workloads.auc import roc_auc
from pmemlab.workloads.batches import Source
from pmemlab.workloads.wide_and_deep import DenseAdagrad, EmbeddingTables, ModelOptions, WideAndDeep

_EVALUATION_BATCH: Final = 4096
_FINAL_LOSS_STEPS: Final = 10

Progress = Callable[[int, float], None]
"""Called after each step with the number of steps done and the step's loss."""


class DivergedError(ArithmeticError):
    """A loss is no finite number any more, so the run says nothing."""


@dataclass(frozen=True)
class TierEvidence:
    """Where the rows of one tier of a table really lay while it was alive.

    nodes: NUMA node -> touched pages of the rows on it, by move_pages(2).
    file: path of the file mapped at the first row, or None.
    is_pmem: what libpmem says of the mapping; None where libpmem is not involved.
    """

    name: str
    rows: int
    bytes: int
    nodes: dict[int, int]
    file: str | None
    is_pmem: bool | None


@dataclass(frozen=True)
class TableEvidence:
    """One table: what the engine counted, and where its rows lay."""

    name: str
    stats: dict[str, Any]
    tiers: list[TierEvidence]


@dataclass(frozen=True)
class Run:
    """One training run. Everything in it goes into JSON as it is.

    losses: each step's mean log loss, exact, as `float.hex` writes it.
    loss: mean of the last 10 of them.
    auc: on the held-out rows; None where they are all of one class.
    samples_per_s: rows trained per second, reading of data included.
    lookups_per_s: embedding rows read in training per second spent in lookups. Like samples_per_s
        and train_seconds it leaves out the first step, which warms up, where there are others.
    state_sha256: over every variable's export: keys, values, slots, frequencies, versions.
    """

    storage_type: str
    steps: int
    samples: int
    losses: list[str]
    loss: float
    auc: float | None
    held_out_rows: int
    train_seconds: float
    samples_per_s: float
    lookups_per_s: float
    state_sha256: str
    tables: list[TableEvidence]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def train(
    source: Source,
    storage: es.StorageOption,
    *,
    steps: int,
    batch_size: int,
    model: ModelOptions,
    progress: Progress = lambda _step, _loss: None,
) -> Run:
    """Train for `steps` batches of `batch_size` rows, then judge on the held-out rows.

    Raises DataError for unusable data, EmbStoreError where the engine refuses, and DivergedError
    where there is nothing left to train; the tables are closed then too.
    """
    make_reproducible(model.seed)
    with EmbeddingTables(storage, model) as tables:
        network = WideAndDeep(tables, model)
        optimizer = DenseAdagrad(network)
        loss_of = nn.BCEWithLogitsLoss()
        losses: list[float] = []
        started = time.perf_counter()
        for batch in islice(source.train_batches(batch_size), steps):
            logits = network(torch.from_numpy(batch.dense), torch.from_numpy(batch.keys))
            loss = loss_of(logits, torch.from_numpy(batch.labels))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise DivergedError(f"step {len(losses)}: the loss is {losses[-1]}")
            progress(len(losses), losses[-1])
            if len(losses) == 1 and steps > 1:
                network.lookup_clock.reset()
                started = time.perf_counter()
        seconds = time.perf_counter() - started
        clock = network.lookup_clock
        lookups_per_s = clock.rows / clock.seconds
        timed_samples = batch_size * max(steps - 1, 1)
        for variable in tables:
            variable.drain()
        # Before the evaluation, whose lookups count for the cache's ranking.
        state = state_sha256(tables)
        evidence = [table_evidence(variable) for variable in tables]
        auc, held_out_rows = _evaluate(network, source)
    return Run(
        storage_type=storage.storage_type.name,
        steps=steps,
        samples=steps * batch_size,
        losses=[loss.hex() for loss in losses],
        loss=float(np.mean(losses[-_FINAL_LOSS_STEPS:])),
        auc=auc,
        held_out_rows=held_out_rows,
        train_seconds=seconds,
        samples_per_s=timed_samples / seconds,
        lookups_per_s=lookups_per_s,
        state_sha256=state,
        tables=evidence,
    )


def make_reproducible(seed: int) -> None:
    """Make PyTorch give the same bits again: seeded, one thread, deterministic algorithms only."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    # As use_deterministic_algorithms(True), which imports PyTorch's compiler besides.
    torch.set_deterministic_debug_mode("error")


def state_sha256(tables: EmbeddingTables) -> str:
    """Return a SHA-256 in hex over all that the variables hold, to the last bit."""
    digest = hashlib.sha256()
    for variable in tables:
        for field, array in sorted(variable.export().items()):
            digest.update(f"{variable.name} {field} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def table_evidence(variable: es.EmbeddingVariable) -> TableEvidence:
    """Ask the engine and the kernel about one table. REQUIRES: it is open and drained."""
    stats = variable.stats()
    return TableEvidence(
        name=variable.name,
        stats=dict(stats),
        tiers=[_tier_evidence(tier) for tier in stats["tiers"]],
    )


def _tier_evidence(tier: Any) -> TierEvidence:
    address: int = tier["address"]
    nodes: dict[int, int] = {}
    file = tier["path"]
    if address:
        nodes = page_nodes(address, max(tier["bytes"], mmap.PAGESIZE))
        file = backing_file(address)
    return TierEvidence(
        name=tier["name"],
        rows=tier["rows"],
        bytes=tier["bytes"],
        nodes=nodes,
        file=file,
        is_pmem=tier["is_pmem"],
    )


def _evaluate(network: WideAndDeep, source: Source) -> tuple[float | None, int]:
    labels = [np.empty(0, np.float32)]
    scores = [np.empty(0, np.float32)]
    network.eval()
    for batch in source.held_out_batches(_EVALUATION_BATCH):
        labels.append(batch.labels)
        scores.append(network.predict(batch))
    all_labels = np.concatenate(labels)
    return roc_auc(all_labels, np.concatenate(scores)), len(all_labels)
