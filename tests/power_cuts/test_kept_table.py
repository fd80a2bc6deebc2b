"""Power cuts of rows that SSDHASH keeps: a close is kept whole, or not at all."""

from __future__ import annotations

import pytest
from kept_table import check_kept, train_and_close

from powercut.plugin import PowerCut


@pytest.mark.long
def test_a_cut_at_any_moment_leaves_a_whole_close_or_none(
    power_cut: PowerCut,
) -> None:
    power_cut(train_and_close, check_kept, tries=30, imports_once=True)


@pytest.mark.long
def test_every_sync_of_kept_rows_is_needed(power_cut: PowerCut) -> None:
    # Each needed sync is noticed within 21 tries.
    mutations = power_cut.mutations(
        train_and_close, check_kept, tries=40, site_frames=2, imports_once=True
    )
    unnoticed = [mutation.site for mutation in mutations if mutation.failure is None]
    # Three syncs of directories may go unnoticed. The first is of the directory as found at
    # opening: it matters if a process was killed before. The second is of the tier's own name,
    # which the manifest's sync brings to this medium as well; a medium that keeps names in any
    # order needs it, which the tier's own tests cover. The third is where close() drops the
    # checkpoint that the table began with, which has no rows whose slots might be overwritten too
    # early.
    assert len(unnoticed) <= 3
    assert all((site.function, site.calls) == ("fsync", 1) for site in unnoticed)
    assert len(mutations) - len(unnoticed) >= 3
