"""The rows of an epoch, in the same order for every worker, and split between workers by batch.

Memory doesn't grow with the data: only the rows of a file that are being shuffled are held.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np

from pmemlab.workloads.batches import Batch, DataError
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.synthetic import SyntheticSource

__all__ = ["Epochs", "FileEpochs", "GeneratedEpochs", "Order", "Worker", "worker_batches"]

SHUFFLED_ROWS: Final = 65_536

_T = TypeVar("_T")


@dataclass(frozen=True)
class Worker:
    """One of `count` workers that train a model together. number: from 0."""

    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class Order:
    """The parameters that determine an epoch's batches.

    shuffled_rows: size of the shuffle window; lines of a file in different windows stay in order.
    """

    seed: int
    epoch: int
    batch_size: int
    shuffled_rows: int = SHUFFLED_ROWS

    def generator(self) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.epoch))


class Epochs(Protocol):
    """A source of training rows and held-out rows."""

    def batches(self, order: Order, worker: Worker) -> Iterator[Batch]:
        """Yield the worker's part of the rows to train on, each row once: see `worker_batches`."""

    def held_out(self) -> Batch:
        """Returns the held-out rows."""

    def rows_to_train(self) -> int:
        """Returns the training rows of an epoch; an estimate for a file, since it would have to be
        read.
        """


def worker_batches(rows: Iterator[_T], order: Order, worker: Worker) -> Iterator[list[_T]]:
    """Shuffle rows, cut them into batches, and yield one worker's batches: of n workers the r-th
    has the batches r, r + n, ...

    All workers have equally many batches of equal sizes, since they wait for each other: when the
    rows don't suffice for a batch each, the workers share the rest, and drop fewer than n rows.
    """
    shuffled = _shuffled(rows, order)
    while of_all := list(itertools.islice(shuffled, worker.count * order.batch_size)):
        share = len(of_all) // worker.count  # a batch, except for the last ones
        if share:
            yield of_all[worker.number * share : (worker.number + 1) * share]


def _shuffled(rows: Iterator[_T], order: Order) -> Iterator[_T]:
    generator = order.generator()
    while held := list(itertools.islice(rows, order.shuffled_rows)):
        for index in generator.permutation(len(held)).tolist():
            yield held[index]


@dataclass(frozen=True)
class FileEpochs:
    """Rows of a Criteo file; `CriteoSource` chooses the held-out rows. held_out_rows: at most this
    many of them are used, from the first on.

    Raises DataError, which names file and line.
    """

    source: CriteoSource
    held_out_rows: int

    def batches(self, order: Order, worker: Worker) -> Iterator[Batch]:
        for lines in worker_batches(self.source.training_lines(), order, worker):
            yield self.source.parse(lines)

    def held_out(self) -> Batch:
        return _first_batch(self.source.held_out_batches(self.held_out_rows))

    def rows_to_train(self) -> int:
        path = self.source.path
        with path.open("rb") as file:
            beginning = file.read(1 << 20)
        rows = path.stat().st_size / len(beginning) * max(beginning.count(b"\n"), 1)
        return max(1, round(rows * (1 - 1 / self.source.held_out_every)))


@dataclass(frozen=True)
class GeneratedEpochs:
    """Generated rows, drawn again for each epoch: the same rows for the same batch size."""

    source: SyntheticSource
    rows: int

    def batches(self, order: Order, worker: Worker) -> Iterator[Batch]:
        # The rows are independent of each other, so shuffling batches is enough.
        whole, rest = divmod(self.rows, order.batch_size)
        numbers = order.generator().permutation(whole).tolist()
        with_all = whole // worker.count * worker.count
        for number in numbers[worker.number : with_all : worker.count]:
            yield self.source.train_batch(number, order.batch_size)
        rest_batches = [
            self.source.train_batch(number, order.batch_size) for number in numbers[with_all:]
        ]
        if rest:
            rest_batches.append(self.source.train_batch(whole, rest))
        share = sum(map(len, rest_batches)) // worker.count
        if share:
            yield _rows(_joined(rest_batches), worker.number * share, (worker.number + 1) * share)

    def held_out(self) -> Batch:
        count = self.source.held_out_rows
        try:
            return _first_batch(self.source.held_out_batches(count))
        except MemoryError:
            raise DataError(
                f"--held_out_rows {count}: don't fit this computer's memory; give fewer"
            ) from None

    def rows_to_train(self) -> int:
        return self.rows


def _first_batch(batches: Iterator[Batch]) -> Batch:
    nothing = Batch(np.empty(0, np.float32), np.empty((0, 13), np.float32), np.empty((0, 26), int))
    return next(batches, nothing)


def _joined(batches: list[Batch]) -> Batch:
    return Batch(
        np.concatenate([batch.labels for batch in batches]),
        np.concatenate([batch.dense for batch in batches]),
        np.concatenate([batch.keys for batch in batches]),
    )


def _rows(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(batch.labels[start:stop], batch.dense[start:stop], batch.keys[start:stop])
