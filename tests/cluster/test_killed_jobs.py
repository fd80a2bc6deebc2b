"""A job ends with the rows, the weights and the losses of one to which nothing happens, whatever is
killed.

    pytest tests/cluster/test_killed_jobs.py -m long --kills 50 --kills-seed 3
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pytest
from hunted_program import trained_here
from job_hunt import KINDS, STORAGES, drawn, hunt
from sharded import assert_same

KILLS = 4  # without --kills
KILLS_A_RUN = 6
SEED = 413  # a shard, a worker, a node and the driver, each at another moment


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_job_outlives_kills_at_any_moment(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("kills", None) or KILLS
    seed = pytestconfig.getoption("kills_seed", None) or SEED
    kills = drawn(count, seed)
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    tell(f"pytest tests/cluster/test_killed_jobs.py -m long --kills {count} --kills-seed {seed}")
    with hunt(tmp_path, tell) as hunted:
        tell("the cluster is there")
        for storage in itertools.cycle(STORAGES):
            got, killed = hunted.run(kills[:KILLS_A_RUN], storage)
            tell(f"a run on {storage} has ended after {killed} kills")
            assert_same(got, trained_here())
            kills = kills[killed:]
            if not kills:
                break
    tell(", ".join(f"{how_many} {what}" for what, how_many in hunted.done.items()))
    assert sum(hunted.done[kind] for kind in KINDS) == count
