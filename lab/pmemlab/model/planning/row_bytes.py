"""The bytes of a row in its tier and in the DRAM beside it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from embstore import optimizers
from embstore.optimizers import Optimizer
from embstore.options import TierKind
from pmemlab.errors import PlanError

__all__ = ["RowShape", "TierBytes", "optimizer_by_name", "row_bytes_in_tier"]

ON_SSD = frozenset({TierKind.SSDHASH, TierKind.LEVELDB})

# DRAM per row of a tier: the index, and the ranking of rows. From engine/PERFORMANCE.md, "Memory",
# as `python -m embstore.bench memory` measures. The figures are for hashed keys: keys that number a
# vocabulary take ten bytes less, but a plan doesn't know the kind of keys.
_INDEX_BYTES = 20.8
_BESIDE_ONLY_TIER = 20.9
_BESIDE_MIDDLE_TIER = 37.5
_BESIDE_LAST_TIER = {
    TierKind.PMEM: 21.4,
    TierKind.DRAM: 21.4,  # below HBM, like any memory below another
    TierKind.SSDHASH: 22.1,
    TierKind.LEVELDB: 23.8,
}
# engine/core/row/row_layout.h and tiers/memory/slot_ranks.h: bytes kept beside the floats.
_META_BYTES = 16
_HEADER_BYTES = 48
_FIRST_TIER_RANK_BYTES = 32
_HBM_SLOT_BYTES = 8 + 16  # its key and rank, in DRAM (tiers/hbm/hbm_tier.h)
# engine/FORMAT.md. SSDHASH: a record's head; files take at most twice the live rows. LEVELDB: a
# record's key, LevelDB's 8 bytes added to it, and the value's bytes beside the floats.
SSDHASH_RECORD_HEAD_BYTES = 64
_SSDHASH_SPACE = 2.0
LEVELDB_RECORD_HEAD_BYTES = 17 + 8 + 60
# Each level is ten times the one before (LevelDB's doc/impl.md), and may hold a row's older copy.
_LEVELDB_SPACE = 1.11


@dataclass(frozen=True)
class RowShape:
    """The shape of a row. dim: columns. slots: the optimizer's arrays of `dim` floats beside the
    weights.
    """

    dim: int
    slots: int

    @property
    def weights_bytes(self) -> int:
        """Bytes that a look-up reads."""
        return 4 * self.dim

    @property
    def row_bytes(self) -> int:
        """Bytes of weights and slots, each aligned to 16 bytes: the engine's row layout."""
        return (1 + self.slots) * (-(-4 * self.dim // 16) * 16)


@dataclass(frozen=True)
class TierBytes:
    """The bytes of one row. tier: on the tier's device. dram: beside it in DRAM, whatever that
    device is.

    record, header: bytes that are read and written when the row changes tiers; the header lies
    apart from the record, also on the tier's device.
    """

    tier: float
    dram: float
    record: int
    header: int = 0


def row_bytes_in_tier(shape: RowShape, kinds: tuple[TierKind, ...], tier: int) -> TierBytes:
    """Returns the bytes of a row in one tier. kinds: the storage type's tiers, fastest first."""
    kind, row = kinds[tier], shape.row_bytes
    if kind is TierKind.HBM:
        return TierBytes(row + _HEADER_BYTES, _INDEX_BYTES + _HBM_SLOT_BYTES, row, _HEADER_BYTES)
    if len(kinds) == 1:
        return TierBytes(row + _META_BYTES, _BESIDE_ONLY_TIER, row, _META_BYTES)
    if tier == 0:
        dram_bytes = _INDEX_BYTES + _FIRST_TIER_RANK_BYTES + _META_BYTES
        return TierBytes(row, dram_bytes, row)
    if kind is TierKind.SSDHASH:
        record = SSDHASH_RECORD_HEAD_BYTES + row
        return TierBytes(_SSDHASH_SPACE * record, _BESIDE_LAST_TIER[kind], record)
    if kind is TierKind.LEVELDB:
        record = LEVELDB_RECORD_HEAD_BYTES + row
        return TierBytes(_LEVELDB_SPACE * record, _BESIDE_LAST_TIER[kind], record)
    last = tier == len(kinds) - 1
    return TierBytes(
        row + _HEADER_BYTES,
        _BESIDE_LAST_TIER[kind] if last else _BESIDE_MIDDLE_TIER,
        row,
        _HEADER_BYTES,
    )


def optimizer_by_name(name: str) -> Optimizer:
    """Returns an optimizer of embstore.optimizers by its case-insensitive name. Raises
    PlanError.
    """
    known = {each.lower(): each for each in optimizers.__all__ if each != "Optimizer"}
    if name.lower() not in known:
        raise PlanError(f"--optimizer {name}: must be one of {', '.join(known.values())}")
    kind: type[Optimizer] = getattr(optimizers, known[name.lower()])
    # Parameters don't affect a row's size; those without a default get an arbitrary value.
    parameters = inspect.signature(kind).parameters.values()
    return kind(**{p.name: 0.1 for p in parameters if p.default is inspect.Parameter.empty})
