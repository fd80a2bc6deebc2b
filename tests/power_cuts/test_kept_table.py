"""Power cuts of rows that SSDHASH keeps: each is one that was, and those of a close are there."""

from __future__ import annotations

import pytest
from kept_table import check_kept, train_and_close

from pmemlab.powercut.fixture import PowerCut


@pytest.mark.long
def test_a_cut_at_any_moment_leaves_whole_rows_and_all_that_were_closed(
    power_cut: PowerCut,
) -> None:
    power_cut(train_and_close, check_kept, tries=30)


@pytest.mark.long
def test_every_sync_of_kept_rows_is_needed(power_cut: PowerCut) -> None:
    mutations = power_cut.mutations(train_and_close, check_kept, tries=120, site_frames=2)
    unnoticed = [str(mutation.site) for mutation in mutations if mutation.failure is None]
    # That of the note's name, before the close: by the note a killed run's unwritten records are
    # counted, which the check doesn't ask for.
    assert len(unnoticed) <= 1
    assert len(mutations) - len(unnoticed) >= 3
