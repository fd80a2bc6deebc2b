"""Steps on a GPU: look-ups and updates of one or more variables with ids in the GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from embstore import _core
from embstore.errors import InvalidArgumentError
from embstore.gpu.batches import BatchConditions, IdsOnDevice, OnDevice, check_same_gpu
from embstore.table.attempts import Attempts
from embstore.table.internals import between_batches

if TYPE_CHECKING:
    from embstore.variable import EmbeddingVariable

_StepT = TypeVar("_StepT", "LookUpStep", "ApplyStep")

__all__ = ["ApplyStep", "LookUpStep", "apply_together", "look_up_together"]


@dataclass(frozen=True)
class LookUpStep:
    """One variable's look-up in a step, and the array that gets its rows.

    batch: the core's arguments: tables, the address of ids, their number, the address of `out`.
    """

    variable: EmbeddingVariable
    ids: IdsOnDevice
    out: Any
    batch: tuple[list[_core.Table], int, int, int]

    @classmethod
    def of(cls, variable: EmbeddingVariable, array: OnDevice, out: Any) -> LookUpStep:
        """Returns a look-up. out: None makes an array. Raises InvalidArgumentError if an array
        doesn't fit.
        """
        ids = _ids_for(variable, array)
        out, address = ids.rows(variable.dim, out)
        return cls(variable, ids, out, (*_batch(variable, ids), address))


@dataclass(frozen=True)
class ApplyStep:
    """One variable's update in a step. It keeps its arrays alive until it is put on its stream.

    batch: the core's arguments: tables, the address of ids, their number; the address of `grads`,
        their number of rows, the address of `bags`; the addresses of `conditions`, with its reasons
        before the last address.
    """

    variable: EmbeddingVariable
    ids: IdsOnDevice
    grads: OnDevice
    bags: OnDevice | None
    conditions: BatchConditions
    batch: tuple[list[_core.Table], int, int, int, int, int, int, int, list[str], int]

    @classmethod
    def of(
        cls,
        variable: EmbeddingVariable,
        array: OnDevice,
        grads: OnDevice,
        conditions: BatchConditions | None = None,
        bags: OnDevice | None = None,
    ) -> ApplyStep:
        """Returns an update. Raises InvalidArgumentError if an array doesn't fit.

        conditions: which part of the batch counts. A refused batch changes no row, but counts as an
            apply; the next call raises the reason.
        bags: the number of each id's bag, int64 of the ids' shape, each less than len(grads). Then
            `grads` has a row for each bag, which its ids share.
        """
        ids = _ids_for(variable, array)
        grads, rows = ids.gradients(grads, variable.dim, bags)
        conditions = conditions or BatchConditions()
        keep_mask, refusal, skip = conditions.addresses(ids)
        reasons = list(conditions.reasons)
        batch = (*_batch(variable, ids), *rows, keep_mask, refusal, reasons, skip)
        return cls(variable, ids, grads, bags, conditions, batch)


def look_up_together(steps: Sequence[LookUpStep], train: bool, count: bool) -> None:
    """Puts look-ups on their streams; all look-ups of one stream are one step.

    train, count: as in `EmbeddingVariable.lookup`.
    """
    for (_, stream), on_stream in _by_stream(steps).items():
        _core.lookup_on_device([step.batch for step in on_stream], stream, train, count)


def apply_together(steps: Sequence[ApplyStep], global_step: int | None) -> None:
    """Puts updates on their streams; all updates of one stream are one step. REQUIRES: no variable
    is listed twice.

    Each update is applied whole or not at all. Raises the first error when all updates had their
    turn, those that the host applies included.
    """
    attempts = Attempts()
    for (_, stream), on_stream in _by_stream(steps).items():
        parted = [step.variable for step in on_stream if len(step.batch[0]) > 1]
        with attempts.attempt(), between_batches(parted):
            _core.apply_on_device([step.batch for step in on_stream], stream, global_step)
        if parted or len(on_stream) > 1:
            _core.pay_pacing_debt()  # once locks are free, so that no other thread waits for them
    attempts.raise_first()


def _ids_for(variable: EmbeddingVariable, array: OnDevice) -> IdsOnDevice:
    ids = IdsOnDevice.of(array)
    if variable.gpu is None:
        raise InvalidArgumentError(
            f"ids are on {ids.device}, but {variable.name} has no tier of HBM in this process; "
            "copy them to the host"
        )
    check_same_gpu(variable.name, ids, variable.gpu)
    return ids


def _batch(variable: EmbeddingVariable, ids: IdsOnDevice) -> tuple[list[_core.Table], int, int]:
    """Returns the tables of the variable's partitions, the address of the ids, and their number."""
    tables = [shard.table for shard in variable.internals.shards_with_hbm()]
    return tables, ids.address, prod(ids.shape)


def _by_stream(steps: Sequence[_StepT]) -> dict[tuple[str, int], list[_StepT]]:
    """Returns the steps grouped by GPU and stream handle."""
    streams: dict[tuple[str, int], list[_StepT]] = {}
    for step in steps:
        streams.setdefault((step.ids.device, step.ids.stream), []).append(step)
    return streams
