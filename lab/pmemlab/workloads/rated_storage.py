"""The storage of a run that is made only to be predicted on other devices."""

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
    """Return the same tiers, of the same sizes, with DRAM in the place of a GPU's memory.

    Which rows are in the first tier, and which come and go, is the same in both; `stats()` calls
    that tier DRAM. In DRAM a recording has each look-up and each update of a row. Of a tier of HBM
    it has only what the host copied.
    """
    if not storage.has_hbm:
        return storage
    fields = {name: getattr(storage, name) for name in storage.__dataclass_fields__}
    return _WithDramForHbm(**fields)
