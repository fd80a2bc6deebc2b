"""Trains rows in the servers' PMem with two workers and checkpoints.

    python job_on_servers.py FOLDER

FOLDER gets the checkpoints, and at the end result.npz with everything known of the rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from job_training import STEPS, train

import embstore as es

SHARDS = 2
WORKERS = 2

_PMEM_BYTES = 16 << 20  # per shard
_FIRST_ROWS = 20  # per shard, in DRAM
_ROW_BYTES = 48  # with Adam's slots
_PAUSE_S = 0.1  # per step: time for the test to interfere

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    result, _ = es.cluster.run(
        train,
        folder,
        SHARDS,
        _PAUSE_S,
        STEPS,
        es.StorageOption(
            es.StorageType.DRAM_PMEM,
            [None, es.cluster.NODE_PMEM],
            [_FIRST_ROWS * _ROW_BYTES, _PMEM_BYTES],
        ),
        workers=WORKERS,
        cpus_per_worker=0.5,  # the servers with PMem offer none
        checkpoints=folder / "checkpoints",
        silence_s=6.0,
        patience_s=60.0,
    )
    np.savez(folder / "result.npz", **result)
