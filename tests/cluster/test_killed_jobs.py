"""A job ends with the rows, the weights and the losses of a job without failures, whatever is
killed. An asynchronous job ends with rows of updates that were applied once each.

    pytest tests/cluster/test_killed_jobs.py -m long --kills 50 --kills-seed 3
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hunted_asynchronous_program
import hunted_program
import numpy as np
import pytest
from job_hunt import KINDS, STORAGES, Hunt, drawn, hunt
from sharded import assert_same
from updates_seen import assert_updates_were_applied_once

KILLS = 4  # default of --kills
KILLS_A_RUN = 6
SEED = 413  # kills a shard, a worker, a node and the driver, each at another moment

_BEGAN = time.monotonic()


def tell(what: str) -> None:
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {what}", file=sys.stderr, flush=True)


@pytest.fixture(scope="module")
def hunted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hunt]:
    """One cluster for both hunts: starting and ending its three nodes takes 10 s of CPU."""
    with hunt(tmp_path_factory.mktemp("hunt"), tell) as begun:
        tell("the cluster is there")
        yield begun


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_job_outlives_kills_at_any_moment(hunted: Hunt, pytestconfig: pytest.Config) -> None:
    def check(folder: Path, arguments: tuple[str, ...]) -> None:
        del arguments
        with np.load(folder / "result.npz") as result:
            assert_same(dict(result), hunted_program.trained_here())

    runs: list[tuple[str, ...]] = [(storage,) for storage in STORAGES]
    _assert_outlives(hunted, Path(hunted_program.__file__), runs, check, pytestconfig)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_an_asynchronous_job_applies_each_update_once_whatever_is_killed(
    hunted: Hunt, pytestconfig: pytest.Config
) -> None:
    def check(folder: Path, arguments: tuple[str, ...]) -> None:
        assert_updates_were_applied_once(folder, "meeting" in arguments)

    alone = [(storage,) for storage in STORAGES]
    meeting = [(storage, "meeting") for storage in STORAGES]
    runs = [alone[0], meeting[1], alone[2], meeting[3], meeting[0], alone[1], meeting[2], alone[3]]
    program = Path(hunted_asynchronous_program.__file__)
    _assert_outlives(hunted, program, runs, check, pytestconfig)


def _assert_outlives(
    hunted: Hunt,
    program: Path,
    runs: list[tuple[str, ...]],
    check: Callable[[Path, tuple[str, ...]], None],
    config: pytest.Config,
) -> None:
    """Runs the program until all kills are done. runs: each run's arguments. check: looks at the
    folder of a run that has ended.
    """
    count = config.getoption("kills", None) or KILLS
    seed = config.getoption("kills_seed", None) or SEED
    kills = drawn(count, seed)
    tell(f"pytest tests/cluster/test_killed_jobs.py -m long --kills {count} --kills-seed {seed}")
    before = hunted.done.copy()
    for arguments in itertools.cycle(runs):
        ended, killed = hunted.run(kills[:KILLS_A_RUN], program, *arguments)
        tell(f"a run of {' '.join(arguments)} has ended after {killed} kills")
        check(ended, arguments)
        kills = kills[killed:]
        if not kills:
            break
    done = hunted.done - before
    tell(", ".join(f"{how_many} {what}" for what, how_many in done.items()))
    assert sum(done[kind] for kind in KINDS) == count
