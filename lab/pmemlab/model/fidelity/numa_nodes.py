"""Compares runs on two NUMA nodes' memory, each predicted from a run on the other node.

Both nodes are measured as `pmemlab model measure` does, and trained on, from the CPUs of the near
node. Each run is a process of its own, since memkind reads its node when a process starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pmemlab.errors import LabError, MeasuringError
from pmemlab.model.devices.measuring.target import NodeTarget, find_target, node_names
from pmemlab.model.fidelity.measured import Comparison, compare_runs

__all__ = ["NodeTraining", "compare_nodes", "nodes_to_compare"]


@dataclass(frozen=True)
class NodeTraining:
    """The training to compare. rows: of 16 weights each; all of them lie in the node's memory."""

    rows: int = 4_000_000
    batch: int = 16_384
    steps: int = 40
    repetitions: int = 5


def nodes_to_compare() -> tuple[str, str] | None:
    """Returns the first node with CPUs and memory, and another with memory; None if there aren't
    two.
    """
    near, far = None, None
    for name in node_names():
        try:
            target = find_target(name)
        except MeasuringError:  # no memory
            continue
        assert isinstance(target, NodeTarget)
        if near is None and target.has_cpus:
            near = name
        elif far is None:
            far = name
    return None if near is None or far is None else (near, far)


def compare_nodes(
    near: str,
    far: str,
    files: Sequence[Path],
    training: NodeTraining,
    on_turn: Callable[[str], object] = lambda _: None,
) -> list[Comparison]:
    """Trains on both nodes in turns. files: both nodes' measured device files. Raises LabError."""
    on_near, on_far = [], []
    for turn in range(training.repetitions):
        on_turn(f"{near} and {far}: turn {turn + 1} of {training.repetitions}")
        on_near.append(_train(near, training, files))
        on_far.append(_train(far, training, files[::-1]))
    return [
        _comparison(f"PMEM_MEMKIND on {far} from {near}", training, on_far, on_near),
        _comparison(f"PMEM_MEMKIND on {near} from {far}", training, on_near, on_far),
    ]


def _comparison(
    name: str, training: NodeTraining, runs: Sequence[_Run], predicting: Sequence[_Run]
) -> Comparison:
    return compare_runs(
        f"{name}, {training.steps} batches of {training.batch:,}",
        [run.seconds for run in runs],
        [run.predicted_seconds for run in predicting],
        f"{training.rows:,} rows",
    )


@dataclass(frozen=True)
class _Run:
    """A run's time, and its predicted time on the other node."""

    seconds: float
    predicted_seconds: float


def _train(node: str, training: NodeTraining, files: Sequence[Path]) -> _Run:
    parameters = {"rows": training.rows, "batch": training.batch, "steps": training.steps}
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pmemlab.model.fidelity.training_on_node",
            json.dumps(parameters),
            *map(str, files),
        ],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "MEMKIND_DAX_KMEM_NODES": node.removeprefix("node"),
        },
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LabError(f"{node}: no table could be trained there: {reason}")
    return _Run(**json.loads(done.stdout))
