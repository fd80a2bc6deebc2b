"""Trains a table of two tiers on a CPU whose own NUMA node has hardly any memory left.

Linux then takes pages from the nearest node, which is the CPU's persistent memory.
"""

from __future__ import annotations

import os
import time

import numpy as np

import embstore as es
from pmemlab.model.devices.measuring.target import NodeTarget, find_target
from pmemlab.workloads.own_program import print_run

_NODE = "node1"
_MIB = 1 << 20
_ROWS, _DIM, _BATCH_IDS = 200_000, 16, 10_000


def _fill_node() -> list[bytearray]:
    """Takes the node's memory until the kernel takes pages from other nodes."""
    taken = []
    while True:
        before_bytes = _node().free_bytes
        taken.append(bytearray(b"x" * _MIB))
        if _node().free_bytes > before_bytes - _MIB // 2:
            return taken


def _node() -> NodeTarget:
    node = find_target(_NODE)
    assert isinstance(node, NodeTarget)
    return node


def main() -> None:
    os.sched_setaffinity(0, _node().cpus)
    held_memory = _fill_node()
    storage = es.StorageOption("dram_pmem", storage_size=["16M", "32M"])
    option = es.EmbeddingVariableOption(storage_option=storage)
    optimizer = es.optimizers.Adagrad(0.05)
    began = time.perf_counter()
    with es.get_embedding_variable("t", _DIM, optimizer=optimizer, ev_option=option) as table:
        for first in range(0, _ROWS, _BATCH_IDS):
            ids = np.arange(first, first + _BATCH_IDS)
            table.apply_gradients(ids, np.ones((_BATCH_IDS, _DIM), np.float32))
        for _ in range(3):
            table.lookup(np.arange(_BATCH_IDS))  # rows move between the tiers, too
        print_run([table], losses=[], samples=_ROWS, seconds=time.perf_counter() - began)
    del held_memory


if __name__ == "__main__":
    main()
