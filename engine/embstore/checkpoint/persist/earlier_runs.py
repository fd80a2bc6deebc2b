"""Checkpoints of an earlier run in the pools of a variable: it has no rows until it is restored."""

from __future__ import annotations

from collections.abc import Iterable

from embstore.errors import StorageError
from embstore.options import TierKind
from embstore.variable import EmbeddingVariable

__all__ = ["refuse_awaiting", "refuse_earlier_run"]


def refuse_earlier_run(variable: EmbeddingVariable) -> None:
    """Raises StorageError where a pool of the variable's has checkpoints of an earlier run."""
    if not _awaits_restore(variable):
        return
    tiers = variable.ev_option.storage_option.tiers()
    place = next(tier.path for tier in tiers if tier.kind is TierKind.PMEM_POOL)
    raise StorageError(
        f"{variable.name}: its pool in {place} holds checkpoints of an earlier run; make the "
        "variable with restores=True, and take them over with embstore.restore_persisted() or "
        "Checkpoints.restore(), or give them up with embstore.discard_persisted()"
    )


def refuse_awaiting(variables: Iterable[EmbeddingVariable]) -> None:
    """Raises StorageError where a variable awaits its restore: a save of it would have no rows."""
    for variable in variables:
        if _awaits_restore(variable):
            raise StorageError(
                f"variables: the pool of {variable.name} holds checkpoints of an earlier run; "
                "take them over with restore_persisted(), or give them up with discard_persisted()"
            )


def _awaits_restore(variable: EmbeddingVariable) -> bool:
    is_durable = variable.ev_option.storage_option.durability is not None
    return is_durable and any(shard.awaits_restore() for shard in variable.internals.shards)
