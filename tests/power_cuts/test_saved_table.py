"""Power cuts of es.save: the last save, or the one before it, is there and whole."""

from __future__ import annotations

import pytest
from saved_table import check_large, check_saves, save_large, train_and_save

from powercut.plugin import PowerCut


@pytest.mark.long
def test_a_cut_at_any_moment_leaves_the_last_save(power_cut: PowerCut) -> None:
    power_cut(train_and_save, check_saves, tries=30, imports_once=True)


@pytest.mark.long
def test_a_cut_of_a_save_past_the_page_cache_leaves_the_last_one(power_cut: PowerCut) -> None:
    power_cut(save_large, check_large, tries=15, imports_once=True)


@pytest.mark.long
def test_every_sync_of_a_save_is_needed(power_cut: PowerCut) -> None:
    mutations = power_cut.mutations(
        train_and_save, check_saves, tries=120, site_frames=2, imports_once=True
    )
    assert len(mutations) >= 3
    assert [str(m.site) for m in mutations if m.failure is None] == []
