"""Behaviour of only one of the two ways to persistent memory: libpmem or memkind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engine_storage import MakeVariable, files_without_locks, skip_without_library
from programs import run_program

import embstore as es

LIBPMEM, MEMKIND = es.StorageType.PMEM_LIBPMEM, es.StorageType.PMEM_MEMKIND
TWOS = np.full((1, 3), 2.0, np.float32)
FILE_BYTES = 4096 + 4096 // 32 * 16  # rows, each with its frequency and version


def libpmem(path: Path) -> es.StorageOption:
    skip_without_library(LIBPMEM)
    return es.StorageOption(LIBPMEM, storage_path=path, storage_size=[4096])


def test_the_directory_is_made_and_the_file_goes_with_the_variable(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    directory = tmp_path / "rows"
    var = make_variable(name="users", storage=libpmem(directory))
    (file,) = files_without_locks(directory)
    assert file.stat().st_size == FILE_BYTES
    assert file.stat().st_blocks * 512 >= FILE_BYTES
    (tier,) = var.stats()["tiers"]
    assert tier["path"] == str(file)
    assert tier["is_pmem"] in (False, True)
    var.close()
    assert list(directory.iterdir()) == []


def test_a_forgotten_variable_leaves_no_file(tmp_path: Path) -> None:
    option = es.EmbeddingVariableOption(storage_option=libpmem(tmp_path))
    var = es.get_embedding_variable("users", 3, ev_option=option)
    assert len(files_without_locks(tmp_path)) == 1
    del var
    assert list(tmp_path.iterdir()) == []


def run_on_memkind(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    skip_without_library(MEMKIND)
    header = """
import embstore as es
storage = es.StorageOption(es.StorageType.PMEM_MEMKIND, storage_size=[1 << 20])
option = es.EmbeddingVariableOption(storage_option=storage)
"""
    inherited = {k: v for k, v in os.environ.items() if k != "MEMKIND_DAX_KMEM_NODES"}
    return run_program(header + program, environment=inherited | environment)


@pytest.mark.parametrize("nodes", [None, "63"])
def test_without_a_memory_node_for_memkind_the_error_says_how_to_get_one(
    nodes: str | None,
) -> None:
    program = """
try:
    es.get_embedding_variable("users", 3, ev_option=option)
except es.errors.MissingDeviceError as error:
    print(error)
"""
    if nodes is None and _has_node_without_cpus():
        pytest.skip("this computer has a node without CPUs, which memkind takes for KMEM DAX")
    run = run_on_memkind(program, **({} if nodes is None else {"MEMKIND_DAX_KMEM_NODES": nodes}))
    assert run.returncode == 0, run.stderr
    assert "daxctl reconfigure-device --mode=system-ram" in run.stdout
    assert "MEMKIND_DAX_KMEM_NODES" in run.stdout


def test_memkind_takes_the_nodes_that_the_environment_names() -> None:
    program = """
with es.get_embedding_variable("users", 3, ev_option=option) as var:
    print(var.lookup([1]).shape, var.stats()["tiers"][0]["name"])
"""
    run = run_on_memkind(program, MEMKIND_DAX_KMEM_NODES="0")
    assert run.stdout.strip() == "(1, 3) PMEM_MEMKIND", run.stderr


def _has_node_without_cpus() -> bool:
    nodes = Path("/sys/devices/system/node").glob("node*/cpulist")
    return any(not cpus.read_text().strip() for cpus in nodes)
