"""Power cuts at every kind of moment in the life of a durable table: no row is wrong or lost."""

from __future__ import annotations

import pytest
from trained_table import check, check_newest, train_and_persist
from trained_table_above_ssd import check_above_ssdhash, train_above_ssdhash
from trained_table_below_hbm import check_below_hbm, train_below_hbm

from powercut.plugin import PowerCut

TRIES = 8  # `make hunt` runs 100; for more by hand: --power-cuts N
SERIES, ROUNDS = 2, 20


def test_a_cut_at_any_moment_leaves_the_last_checkpoint(power_cut: PowerCut) -> None:
    power_cut(train_and_persist, check, tries=TRIES, imports_once=True)


def test_a_cut_at_any_moment_leaves_the_last_checkpoint_of_every_tier(power_cut: PowerCut) -> None:
    power_cut(train_above_ssdhash, check_above_ssdhash, tries=TRIES, imports_once=True)


def test_a_cut_at_any_moment_leaves_the_last_checkpoint_of_a_table_with_hbm(
    power_cut: PowerCut,
) -> None:
    power_cut(train_below_hbm, check_below_hbm, tries=TRIES, imports_once=True)


@pytest.mark.long
def test_a_table_that_is_cut_again_and_again_goes_on_as_if_it_were_not(
    power_cut: PowerCut,
) -> None:
    power_cut(train_and_persist, check_newest, tries=SERIES, rounds=ROUNDS, imports_once=True)


@pytest.mark.long
def test_every_flush_drain_and_sync_is_needed(power_cut: PowerCut) -> None:
    """Removes each call in turn. Each removal must show, which proves that the checks can fail."""
    mutations = power_cut.mutations(train_and_persist, check, tries=80, imports_once=True)
    caught = [mutation.site for mutation in mutations if mutation.failure is not None]
    assert {site.what for site in caught} == {"flush", "drain", "sync"}
    # Only the flush of the table as found at opening may go unnoticed: it matters if a process was
    # killed before, which the pool's own tests cover.
    unnoticed = [mutation.site for mutation in mutations if mutation.failure is None]
    assert [(site.what, site.calls) for site in unnoticed] in ([], [("flush", 1)])
