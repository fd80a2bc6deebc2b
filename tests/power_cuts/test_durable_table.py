"""Power cuts at every kind of moment in the life of a durable table: no row is wrong or lost."""

from __future__ import annotations

from trained_table import check, train_and_persist

from pmemlab.powercut.fixture import PowerCut

TRIES = 60  # `make check` has 500; by hand, more: --pmemlab-power-cuts N
SERIES, ROUNDS = 2, 20


def test_a_cut_at_any_moment_leaves_the_last_checkpoint(power_cut: PowerCut) -> None:
    power_cut(train_and_persist, check, tries=TRIES)


def test_a_table_that_is_cut_again_and_again_goes_on_as_if_it_were_not(
    power_cut: PowerCut,
) -> None:
    power_cut(train_and_persist, check, tries=SERIES, rounds=ROUNDS)


def test_every_flush_drain_and_sync_is_needed(power_cut: PowerCut) -> None:
    """Taken out one by one, each shows: so the checks above can fail."""
    mutations = power_cut.mutations(train_and_persist, check, tries=120)
    calls = {mutation.site.what for mutation in mutations}
    assert calls == {"flush", "drain", "sync"}
    unnoticed = [str(m.site) for m in mutations if m.failure is None]
    assert unnoticed == []
