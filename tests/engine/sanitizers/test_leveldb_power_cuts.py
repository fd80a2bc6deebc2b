"""Power cuts of a LEVELDB tier that follows checkpoints, and of LevelDB, which it relies on."""

from pathlib import Path

import pytest
from native_programs import build

from pmemlab.powercut.fixture import PowerCut

TRIES = 150  # by hand, more: --pmemlab-power-cuts N
MUTATION_TRIES = 400


@pytest.fixture(scope="module")
def program() -> Path:
    return build("leveldb_cut")


def train(program: Path, seed: int) -> list[str]:
    return [str(program), "train", "{medium}", str(seed)]


def check(program: Path) -> list[str]:
    return [str(program), "check", "{medium}"]


@pytest.mark.sanitizer
@pytest.mark.parametrize("seed", [4, 5])
def test_a_cut_at_any_moment_leaves_every_checkpoint(
    power_cut: PowerCut, program: Path, seed: int
) -> None:
    power_cut(train(program, seed), check(program), tries=TRIES, seed=seed)


@pytest.mark.sanitizer
def test_a_cut_of_who_takes_a_database_over_leaves_every_checkpoint(
    power_cut: PowerCut, program: Path
) -> None:
    power_cut(train(program, 11), check(program), prepare=train(program, 31), tries=TRIES)


@pytest.mark.sanitizer
def test_a_tier_that_is_cut_again_and_again_keeps_its_checkpoints(
    power_cut: PowerCut, program: Path
) -> None:
    power_cut(train(program, 77), check(program), tries=4, rounds=20)


@pytest.mark.sanitizer
def test_every_sync_is_needed(power_cut: PowerCut, program: Path) -> None:
    """LevelDB's own, too: taken out one by one, each shows."""
    mutations = power_cut.mutations(train(program, 7), check(program), tries=MUTATION_TRIES)
    assert {mutation.site.what for mutation in mutations} == {"sync"}
    assert [mutation.site for mutation in mutations if mutation.failure is None] == []
