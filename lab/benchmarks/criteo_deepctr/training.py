"""Trains one model, and measures its speed and its AUC."""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import keras
import numpy as np

import embstore as es
import embstore.keras
from benchmarks.criteo_deepctr.checkpoints import (
    TrainingProgress,
    load_checkpoint,
    load_newest_of_job,
    save_checkpoint,
    save_for_job,
)
from benchmarks.criteo_deepctr.epochs import Epochs, Order, Worker
from benchmarks.criteo_deepctr.feature_keys import feature_keys
from benchmarks.criteo_deepctr.models import make_model
from benchmarks.criteo_deepctr.options import (
    ModelOptions,
    TableOptions,
    TrainingOptions,
)
from pmemlab.workloads.auc import roc_auc
from pmemlab.workloads.batches import Batch, DataError
from pmemlab.workloads.run import DivergedError

__all__ = ["Result", "State", "train"]

_LOSS_STEPS: Final = 100
_JUDGED_AT_ONCE: Final = 4096


@dataclass(frozen=True)
class State:
    """Progress after a step. rows: of the epoch, trained by all workers. loss: mean of the last 100
    steps. auc: of the last evaluation; None before the first, and if the rows are of one class.
    """

    epoch: int
    rows: int
    samples_per_s: float
    loss: float
    auc: float | None


@dataclass(frozen=True)
class Result:
    """A run's result. All of it goes into JSON as it is.

    rows: trained by this worker, counted in every epoch. loss: mean of the last 100 steps.
    losses_sha256: over the exact loss of every step. auc: on the held-out rows; None if they are of
    one class. samples_per_s: of all workers; includes reading of data, but not evaluations,
    checkpoints, and the first step if there are others. reading: share of that time spent reading.
    table_rows: rows of the table `rows` at the end.
    """

    model: str
    embedding_dim: int
    optimizer: str
    learning_rate: float
    batch_size: int
    epochs: int
    seed: int
    workers: int
    shards: int | None
    storage_type: str
    rows: int
    steps: int
    samples_per_s: float
    reading: float
    loss: float
    losses_sha256: str
    auc: float | None
    held_out_rows: int
    table_rows: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def train(
    epochs: Epochs,
    model_options: ModelOptions,
    tables: TableOptions,
    options: TrainingOptions,
    *,
    worker: Worker = Worker(),  # noqa: B008  (it can't be changed)
    member: es.cluster.Worker | None = None,
    on_progress: Callable[[State], None] = lambda _state: None,
) -> Result:
    """Train one model, evaluate it on the held-out rows, and close its tables.

    worker: with several workers, torch.distributed has a process group. member: the same worker as
    a member of a job, which shares tables and checkpoints. The same options give the same bits.

    Raises DataError for unusable data or an unusable checkpoint, EmbStoreError for an error of the
    engine, and DivergedError if a loss is not finite.
    """
    keras.utils.set_random_seed(options.seed)
    model = make_model(model_options, tables)
    try:
        optimizer = _optimizer(options)
        if worker.count > 1:
            optimizer = es.keras.averaged(optimizer)
        model.compile(optimizer, "binary_crossentropy")
        model.optimizer.build(model.trainable_variables)
        es.keras.variables(model)  # makes them, now for this optimizer
        run = _Run(model, epochs.held_out(), worker, on_progress, options.judge_every)
        keeper = member if member is not None and member.has_checkpoints else None
        if keeper is not None:
            run.done = load_newest_of_job(keeper, model, model_options) or run.done
        if options.load:
            run.done = load_checkpoint(options.load, model, model_options)
            if run.done.epochs >= options.epochs:
                raise DataError(
                    f"{options.load} has had {run.done.epochs} epochs, and --epochs asks for "
                    f"{options.epochs} in all"
                )
        for epoch in range(run.done.epochs, options.epochs):
            run.train(epochs, Order(options.seed, epoch, options.batch_size))
            if keeper is not None:
                save_for_job(keeper, model, model_options, run.done)
            if options.checkpoint:
                save_checkpoint(options.checkpoint, model, model_options, run.done)
        auc = run.evaluate()
        if options.save and worker.number == 0:
            model.save(options.save, include_optimizer=False)
        return Result(
            model=model_options.name,
            embedding_dim=model_options.embedding_dim,
            optimizer=options.optimizer,
            learning_rate=options.rate,
            batch_size=options.batch_size,
            epochs=options.epochs,
            seed=options.seed,
            workers=worker.count,
            shards=tables.shards,
            storage_type=tables.storage.storage_type.name,
            rows=run.rows,
            steps=run.steps,
            samples_per_s=run.samples_per_s,
            reading=run.reading_s / run.seconds if run.seconds else 0.0,
            loss=run.loss,
            losses_sha256=run.losses.hexdigest(),
            auc=auc,
            held_out_rows=len(run.held_out),
            table_rows=model.get_layer("rows").variable.total_count()[0],
        )
    finally:
        for variable in es.keras.variables(model):
            variable.close()


def _optimizer(options: TrainingOptions) -> Any:
    kinds = {"Adagrad": keras.optimizers.Adagrad, "Adam": keras.optimizers.Adam}
    return kinds[options.optimizer](options.rate)


class _Run:
    """Trains and evaluates a model, and counts rows and seconds."""

    def __init__(
        self,
        model: Any,
        held_out: Batch,
        worker: Worker,
        on_progress: Callable[[State], None],
        judge_every: int,
    ) -> None:
        self.done = TrainingProgress(0, 0)
        self.held_out = held_out
        self.rows = self.steps = 0
        self.seconds = self.reading_s = 0.0
        self.losses = hashlib.sha256()
        self._model = model
        self._worker = worker
        self._on_progress = on_progress
        self._judge_every = judge_every
        self._timed_rows = 0
        self._last_losses: deque[float] = deque(maxlen=_LOSS_STEPS)
        self._auc: float | None = None

    @property
    def loss(self) -> float:
        return float(np.mean(self._last_losses))

    @property
    def samples_per_s(self) -> float:
        return self._worker.count * self._timed_rows / self.seconds if self.seconds else 0.0

    def train(self, epochs: Epochs, order: Order) -> None:
        """Trains one epoch. Raises DataError if it has no row for this worker."""
        rows_before = self.rows
        started = time.perf_counter()
        for batch, keys in es.prefetching(
            ((batch, feature_keys(batch.keys)) for batch in epochs.batches(order, self._worker)),
            {variable: lambda pair: pair[1] for variable in es.keras.variables(self._model)},
        ):
            inputs = [keys, batch.dense]
            read = time.perf_counter()
            loss = self._train_on(inputs, batch.labels[:, None])
            ended = time.perf_counter()
            self.steps += 1
            self.rows += len(batch)
            if self.steps == 2:  # the first step warms up
                self.seconds = self.reading_s = 0.0
                self._timed_rows = 0
            self.seconds += ended - started
            self.reading_s += read - started
            self._timed_rows += len(batch)
            self.done = TrainingProgress(order.epoch, self.done.steps + 1)
            if not math.isfinite(loss):
                raise DivergedError(f"step {self.done.steps}: the loss is {loss}")
            self.losses.update(struct.pack("<d", loss))
            self._last_losses.append(loss)
            if self.steps % self._judge_every == 0:
                self._auc = self.evaluate()
            of_epoch = (self.rows - rows_before) * self._worker.count
            self._on_progress(
                State(order.epoch, of_epoch, self.samples_per_s, self.loss, self._auc)
            )
            started = time.perf_counter()
        if self.rows == rows_before:
            raise DataError("there is no row to train on")
        self.done = TrainingProgress(order.epoch + 1, self.done.steps)

    def _train_on(self, inputs: list[Any], labels: Any) -> float:
        """Returns the batch's loss; NaN if the model's outputs aren't finite, for which PyTorch
        raises.
        """
        try:
            return float(self._model.train_on_batch(inputs, labels))
        except RuntimeError:
            if np.isfinite(np.asarray(self._model.predict_on_batch(inputs))).all():
                raise
            return math.nan

    def evaluate(self) -> float | None:
        """Returns the AUC on the held-out rows."""
        held_out = self.held_out
        scores = [np.empty(0, np.float32)]
        for start in range(0, len(held_out), _JUDGED_AT_ONCE):
            rows = slice(start, start + _JUDGED_AT_ONCE)
            inputs = [feature_keys(held_out.keys[rows]), held_out.dense[rows]]
            scores.append(np.asarray(self._model.predict_on_batch(inputs))[:, 0])
        return roc_auc(held_out.labels, np.concatenate(scores))
