"""Compares a run on this computer's disk with its prediction from a run with files in memory.

The disk is measured as `pmemlab model measure` does. A DRAM_SSDHASH table with its files in memory
(/dev/shm) is trained and recorded, which predicts the time with files on the measured disk; then
the same table is trained with its files there. Both kinds of runs take turns, so that other work on
this computer affects both alike. The shortest run of each is compared, since other work only adds
time. Two NUMA nodes are compared too, if this computer has them (`numa_nodes`).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import embstore as es
from pmemlab.errors import LabError, MeasuringError
from pmemlab.model.devices import DeviceModel, load_device
from pmemlab.model.devices.measuring.command import measure_device
from pmemlab.model.devices.measuring.target import FolderTarget, NodeTarget, find_target, on_cpus
from pmemlab.model.fidelity.measured import Comparison, compare_runs
from pmemlab.model.fidelity.numa_nodes import (
    NodeTraining,
    compare_nodes,
    nodes_to_compare,
)
from pmemlab.model.fidelity.training_on_node import fill, new_table, train
from pmemlab.model.prediction import RanIn, caches_before, predict_run

__all__ = ["Training", "compare_disk", "compare_this_computer"]

_MEMORY = Path("/dev/shm")
_ROW_BYTES = 128  # 16 weights and as many of Adagrad's


@dataclass(frozen=True)
class Training:
    """The training to compare. rows: in all; a tenth of them fit into the first tier. seconds: time
    to measure each figure of the disk. measured_bytes: size of the file to measure with, as
    `--size` of `pmemlab model measure`; None: that command's default.
    """

    rows: int = 400_000
    batch: int = 2048
    steps: int = 40
    repetitions: int = 7
    seconds: float = 0.3
    measured_bytes: int | None = None


def compare_this_computer(
    folder: Path, training: Training, messages: Console
) -> tuple[list[Comparison], list[str]]:
    """Returns comparisons, and what was left out and why. messages: console for progress. Raises
    LabError if the folder is not on a disk, or a table can't be made in memory.
    """
    target = find_target(str(folder))
    if not isinstance(target, FolderTarget) or target.is_memory:
        raise MeasuringError(f"{folder}: is memory; give a folder on a disk")
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="pmemlab-fidelity-") as made:
        for page_cache in (False, True):
            file = Path(made) / ("page-cache-here.yaml" if page_cache else "disk-here.yaml")
            device = load_device(_measure_device_file(str(folder), file, training, page_cache))
            with messages.status("training in turns in memory and on the disk") as status:
                comparisons.append(
                    compare_disk(folder, device, page_cache, training, on_turn=status.update)
                )
        nodes = nodes_to_compare()
        if nodes is None:
            return comparisons, ["Two NUMA nodes: this computer has memory on one alone."]
        near = find_target(nodes[0])
        assert isinstance(near, NodeTarget)
        with on_cpus(near.cpus):
            files = [
                _measure_device_file(name, Path(made) / f"{name}.yaml", training) for name in nodes
            ]
            with messages.status("training in turns on both nodes") as status:
                try:
                    compared = compare_nodes(*nodes, files, NodeTraining(), on_turn=status.update)
                except LabError as error:  # for example without memkind
                    return comparisons, [f"Two NUMA nodes: {error}."]
    return [*comparisons, *compared], []


def compare_disk(
    folder: Path,
    device: DeviceModel | es.devices.Device,
    page_cache: bool,
    training: Training,
    on_turn: Callable[[str], object] = lambda _: None,
) -> Comparison:
    """Compares both kinds of runs in turns. device: the folder's disk, with or without its page
    cache.
    """
    predicted, took = [], []
    reads = 0
    for turn in range(training.repetitions):
        on_turn(f"{device.name}: turn {turn + 1} of {training.repetitions}")
        seconds, read = _predict(device, page_cache, training)
        predicted.append(seconds)
        reads = max(reads, read)
        took.append(_train(folder, page_cache, training))
    way = "through the page cache" if page_cache else "direct I/O"
    return compare_runs(
        f"DRAM_SSDHASH, {way}, {training.steps} batches of {training.batch:,}",
        took,
        predicted,
        f"{reads:,} reads of files",
    )


def _measure_device_file(
    target: str, file: Path, training: Training, page_cache: bool = False
) -> Path:
    seconds, size = training.seconds, training.measured_bytes
    return measure_device(target, file, seconds=seconds, size=size, page_cache=page_cache)


def _predict(
    device: DeviceModel | es.devices.Device, page_cache: bool, training: Training
) -> tuple[float, int]:
    """Returns the predicted seconds on the device, from a run in memory, and the run's file
    reads.
    """
    placement = (None, device)
    caches = caches_before([placement])
    with (
        tempfile.TemporaryDirectory(prefix="pmemlab-fidelity-", dir=_MEMORY) as made,
        _table(Path(made), page_cache, training) as variable,
    ):
        fill(variable, training.rows)
        with es.record_accesses(variable, caches=caches) as recorded:
            seconds = train(variable, training.rows, training.batch, training.steps)
        recorded_run = RanIn(seconds, threading.get_native_id())
        phases = recorded.phases
    predicted = predict_run(phases, caches, placement, recorded_run)
    read = phases["accesses"][phases["access"] == es.Access.FILE_READ].sum()
    return predicted.seconds, int(read)


def _train(folder: Path, page_cache: bool, training: Training) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="pmemlab-fidelity-", dir=folder) as made,
        _table(Path(made), page_cache, training) as variable,
    ):
        fill(variable, training.rows)
        return train(variable, training.rows, training.batch, training.steps)


def _table(folder: Path, page_cache: bool, training: Training) -> es.EmbeddingVariable:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, folder],
        [training.rows // 10 * _ROW_BYTES],
        ssdhash_option=es.SSDHashOption(direct_io=not page_cache),
    )
    try:
        return new_table(storage)
    except es.errors.EmbStoreError as error:
        raise LabError(f"{folder}: no table can be there: {error}") from error
