"""The storage of a run whose only purpose is a prediction on other devices."""

from __future__ import annotations

from dataclasses import replace

import embstore as es
from embstore.options import Tier, TierKind

__all__ = ["with_dram_for_hbm"]


class _WithDramForHbm(es.StorageOption):
    def tiers(self) -> tuple[Tier, ...]:
        return tuple(
            replace(tier, kind=TierKind.DRAM) if tier.kind is TierKind.HBM else tier
            for tier in super().tiers()
        )


def with_dram_for_hbm(storage: es.StorageOption) -> es.StorageOption:
    """Return the same tiers, of the same sizes, with DRAM in place of a GPU's memory.

    The rows in the first tier, and their promotions and demotions, are the same in both; `stats()`
    calls that tier DRAM. A recording of a DRAM tier has each look-up and each update of a row; a
    recording of an HBM tier has only the host's copies.
    """
    if not storage.has_hbm:
        return storage
    fields = {name: getattr(storage, name) for name in storage.__dataclass_fields__}
    return _WithDramForHbm(**fields)
