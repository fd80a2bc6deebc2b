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
    # Those that show do so within 21 tries.
    mutations = power_cut.mutations(
        train_and_close, check_kept, tries=40, site_frames=2, imports_once=True
    )
    unnoticed = [mutation.site for mutation in mutations if mutation.failure is None]
    # Those of directories: as it is found at opening, which matters where a process was killed
    # before; and of the tier's own name, which the manifest's sync brings to this medium as well.
    # That one is needed on a medium that keeps names in any order, which the tier's own tests have.
    # And where close() drops the checkpoint that the table began with: it has no rows, whose places
    # might be written to too early.
    assert len(unnoticed) <= 3
    assert all((site.function, site.calls) == ("fsync", 1) for site in unnoticed)
    assert len(mutations) - len(unnoticed) >= 3
