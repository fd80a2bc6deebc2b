"""Checkpoints of an earlier run in the pools of a variable that isn't to be restored."""

from __future__ import annotations

from embstore.errors import StorageError
from embstore.options import TierKind
from embstore.variable import EmbeddingVariable

__all__ = ["refuse_earlier_run"]


def refuse_earlier_run(variable: EmbeddingVariable) -> None:
    """Raises StorageError where a pool of the variable's has checkpoints of an earlier run."""
    if not any(shard.awaits_restore() for shard in variable.internals.shards):
        return
    tiers = variable.ev_option.storage_option.tiers()
    place = next(tier.path for tier in tiers if tier.kind is TierKind.PMEM_POOL)
    raise StorageError(
        f"{variable.name}: its pool in {place} holds checkpoints of an earlier run; make the "
        "variable with restores=True, and take them over with embstore.restore_persisted() or "
        "Checkpoints.restore(), or give them up with embstore.discard_persisted()"
    )
