"""The machine kind `process`: this computer in place of an emulated one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_qemu import is_running, wait_until

from pmemlab.errors import (
    CommandTimeoutError,
    LabError,
    MachineDiedError,
    MissingRequirementError,
)
from pmemlab.machines.opening import open_machine
from pmemlab.machines.process import (
    LOST_BY_POWER_CUT,
    ProcessMachine,
    open_process_machine,
)
from pmemlab.topology import PersistentMemory, Topology, load_topology

PLAIN = Topology("plain", "this computer", {"kernel": os.uname().release})

# The kernel needs a while to end a process that has much memory.
LARGE_PROGRAM = (
    *(sys.executable, "-u", "-S", "-c"),
    "import os, time; held = b'x' * (512 << 20); print(os.getpid()); time.sleep(60)",
)


@pytest.fixture
def machine() -> Iterator[ProcessMachine]:
    with open_process_machine(PLAIN) as machine:
        yield machine


def _has_memkind() -> bool:
    try:
        ctypes.CDLL("libmemkind.so.0")
    except OSError:
        return False
    return True


def test_a_process_machine_lists_the_facts_that_it_cannot_prove() -> None:
    with open_machine("fsdax", "process") as machine:
        unproved = machine.facts()["unproved"]
        assert isinstance(unproved, list)
        assert "mount.map_sync" in unproved
        assert machine.accelerator == "none"


def test_a_process_machine_lists_its_replacements_of_the_topology_s_media() -> None:
    for name in ("fsdax-nvme", "kmem-dax", "dram"):
        if name == "kmem-dax" and not _has_memkind():
            continue
        with open_machine(name, "process") as machine:
            machine.prove()
            assert (
                machine.facts()["replaced"]
                == {
                    "fsdax-nvme": [
                        "pmem.path /mnt/pmem0 -> /dev/shm: DRAM in place of PMem",
                        f"ssd.path /mnt/nvme0 -> {tempfile.gettempdir()}: whatever disk that is on",
                    ],
                    "kmem-dax": ["pmem.nodes 1 -> 0: DRAM in place of PMem or CXL memory"],
                    "dram": [],
                }[name]
            )


def test_this_computer_s_environment_does_not_make_memory_persistent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMEM_IS_PMEM_FORCE", "1")
    with open_machine("fsdax", "process") as machine:
        unproved = machine.facts()["unproved"]
    assert isinstance(unproved, list)
    assert "libpmem.is_pmem" in unproved


def test_a_fact_that_holds_is_not_listed_as_unproved(machine: ProcessMachine) -> None:
    assert machine.facts()["unproved"] == []


def test_its_persistent_memory_is_a_folder_that_is_removed_with_the_machine() -> None:
    with open_process_machine(load_topology("fsdax")) as machine:
        path = machine.topology.pmem.path
        assert path is not None
        assert path.startswith("/dev/shm/")
        assert machine.run(["sh", "-c", f"echo kept > {path}/file; cat {path}/file"]).stdout
    assert not Path(path).exists()


def test_its_disk_is_a_folder_that_is_removed_with_the_machine() -> None:
    with open_process_machine(load_topology("nvme")) as machine:
        assert machine.topology.ssd is not None
        folder = Path(machine.topology.ssd.path)
        (folder / "file").touch()
        found = machine.facts()["ssd"]
        assert isinstance(found, dict)
        assert found["bytes"] > 0
        unproved = machine.facts()["unproved"]
        assert isinstance(unproved, list)
        assert ("ssd.device" in unproved) == (found["device"] != "/dev/nvme0n1")
    assert not folder.exists()


@pytest.mark.skipif(not _has_memkind(), reason="needs libmemkind")
def test_its_pmem_nodes_are_node_0() -> None:
    with open_process_machine(load_topology("kmem-dax")) as machine:
        assert machine.topology.pmem.nodes == (0,)
        assert machine.run(["sh", "-c", "echo $MEMKIND_DAX_KMEM_NODES"]).stdout == "0\n"


def test_a_computer_without_memkind_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = '{"memkind": {}, "unreadable": {"memkind.page_nodes": "libmemkind.so.0: not there"}}'
    result = SimpleNamespace(returncode=0, stdout=facts, stderr="")
    monkeypatch.setattr(ProcessMachine, "run", lambda *_, **__: result)
    with pytest.raises(MissingRequirementError, match=r"not there.*libmemkind0"):
        open_process_machine(load_topology("kmem-dax"))


def test_a_memkind_without_nodes_is_not_reported_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "memkind_malloc(MEMKIND_DAX_KMEM): no memory; MEMKIND_DAX_KMEM_NODES is not set"
    facts = {"memkind": {}, "unreadable": {"memkind.page_nodes": why}}
    result = SimpleNamespace(returncode=0, stdout=json.dumps(facts), stderr="")
    monkeypatch.setattr(ProcessMachine, "run", lambda *_, **__: result)
    with pytest.raises(
        MissingRequirementError, match=r"no memory.*environment.*NODES: \"0\""
    ) as told:
        open_process_machine(load_topology("kmem-dax"))
    assert "apt-get" not in str(told.value)


def test_too_little_shared_memory_is_an_error() -> None:
    pmem = PersistentMemory("/mnt/pmem0", size_bytes=1 << 60)
    with pytest.raises(LabError, match="free in /dev/shm for topology plain: "):
        open_process_machine(replace(PLAIN, pmem=pmem))


def test_its_python_imports_the_same_pmemlab_as_this_process(machine: ProcessMachine) -> None:
    result = machine.run([machine.python, "-c", "import pmemlab; print(pmemlab.__file__)"])
    assert result.stdout.endswith("pmemlab/__init__.py\n")


def test_a_command_that_closes_its_output_is_waited_for(machine: ProcessMachine) -> None:
    assert machine.run(["sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 4"]).returncode == 4
    with pytest.raises(CommandTimeoutError):
        machine.run(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout=0.3)


@pytest.mark.parametrize("end", ["power_cut", "stop"])
def test_processes_left_by_its_commands_end_with_its_power(
    machine: ProcessMachine, end: str, tmp_path: Path
) -> None:
    # One process in the command's process group, and one in its own session without a parent.
    script = """
        sleep 60 & echo $!
        told=$1; shift
        (setsid "$@" > $told &)
        until [ -s $told ]; do sleep 0.01; done
        cat $told
    """
    done = machine.run(["sh", "-c", script, "sh", tmp_path / "process", *LARGE_PROGRAM])
    left = [int(word) for word in done.stdout.split()]
    assert len(left) == 2
    assert all(map(is_running, left))
    with subprocess.Popen(["sleep", "60"]) as other:
        getattr(machine, end)()
        assert not any(map(is_running, left))
        assert other.poll() is None
        other.kill()


def test_a_command_that_empties_its_environment_ends_with_its_power(
    machine: ProcessMachine,
) -> None:
    was_running: list[bool] = []

    def on_line(line: str) -> None:
        machine.power_cut()
        was_running.append(is_running(int(line)))

    with pytest.raises(MachineDiedError):
        machine.run(["env", "-i", *LARGE_PROGRAM], on_line=on_line)
    assert was_running == [False]


def test_a_command_ends_with_the_process_that_started_it() -> None:
    program = """
from pmemlab.machines.opening import open_machine
machine = open_machine("dram", "process")
machine.run(["sh", "-c", "echo $$; exec sleep 60"], on_line=lambda line: print(line, flush=True))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    wait_until(lambda: not is_running(pid))


def test_a_process_left_after_a_power_cut_ends_when_the_machine_stops(
    machine: ProcessMachine,
) -> None:
    machine.power_cut()
    machine.power_on()
    left = int(machine.run(["sh", "-c", "setsid sleep 60 >&- 2>&- & echo $!"]).stdout)
    assert is_running(left)
    machine.stop()
    assert not is_running(left)


def test_a_machine_inside_a_command_of_another_machine_ends_with_it(
    machine: ProcessMachine,
) -> None:
    with open_process_machine(PLAIN) as inner, pytest.MonkeyPatch.context() as patched:
        for (
            name,
            value,
        ) in machine._boot.emulator.mark.environment.items():  # as in a command of `machine`
            patched.setenv(name, value)
        left = int(inner.run(["sh", "-c", "setsid sleep 60 >&- 2>&- & echo $!"]).stdout)
        machine.power_cut()
        assert not is_running(left)


def test_temporary_files_of_commands_are_removed_with_the_machine(machine: ProcessMachine) -> None:
    file = Path(machine.run(["mktemp"]).stdout.strip())
    made = machine.run([machine.python, "-c", "import tempfile; print(tempfile.mkdtemp())"])
    folder = Path(made.stdout.strip())
    for path in (file, folder):
        assert path.is_relative_to(tempfile.gettempdir())
        assert path.exists()
    machine.stop()
    assert not file.exists()
    assert not folder.exists()
    assert file.parent.parent.name.startswith("pmemlab-machine-")


def test_the_topology_may_name_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    with open_process_machine(replace(PLAIN, environment={"TMPDIR": str(tmp_path)})) as machine:
        assert Path(machine.run(["mktemp"]).stdout.strip()).parent == tmp_path
        assert machine.run(["printenv", "RAY_TMPDIR"]).stdout == ""


@pytest.mark.parametrize(("length", "has_its_own"), [(46, True), (47, False)])
def test_sockets_of_commands_have_short_enough_paths(
    length: int, has_its_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(
        "x" * (length - len("/tmp/tmp12345678")), dir="/tmp"
    ) as parent:
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        monkeypatch.setenv("TMPDIR", parent)
        monkeypatch.setattr(tempfile, "tempdir", parent)
        with open_process_machine(PLAIN) as machine:
            used = machine.run(["printenv", "TMPDIR"]).stdout.strip()
            assert (used != parent) == has_its_own
            script = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX')"
            listening = machine.run([machine.python, "-c", script])
            assert (listening.returncode, listening.stderr) == (0, "")
            ray = machine.run(["sh", "-c", "echo ${RAY_TMPDIR:-$TMPDIR}"]).stdout.strip()
            assert ray == parent


def test_a_machine_keeps_its_files_over_a_power_cut() -> None:
    with open_process_machine(load_topology("fsdax-nvme")) as machine:
        assert machine.topology.ssd is not None
        files = [
            Path(folder or "") / "file"
            for folder in (machine.topology.pmem.path, machine.topology.ssd.path)
        ]
        for file in files:
            file.write_text("not flushed")
        machine.power_cut()
        machine.power_on()
        found = machine.run(["cat", *map(str, files)])
    assert found.stdout == "not flushed" * 2


def test_a_machine_lists_after_a_power_cut_that_it_lost_nothing(machine: ProcessMachine) -> None:
    assert LOST_BY_POWER_CUT not in str(machine.facts())
    machine.power_cut()
    machine.power_on()
    assert machine.facts()["unproved"] == [LOST_BY_POWER_CUT]
    machine.prove()
    assert machine.facts()["unproved"] == [LOST_BY_POWER_CUT]


def test_a_caller_that_reads_lines_gets_the_output_too(machine: ProcessMachine) -> None:
    lines: list[str] = []
    result = machine.run(["sh", "-c", "echo a; printf b; echo c >&2"], on_line=lines.append)
    assert (sorted(lines), result.stdout, result.stderr) == (["a", "c"], "a\nb", "c\n")


def test_a_reader_of_lines_that_fails_ends_the_command(machine: ProcessMachine) -> None:
    def on_line(line: str) -> None:
        raise ValueError(line)

    started = time.monotonic()
    with pytest.raises(ValueError, match="begun"):
        machine.run(["sh", "-c", "echo begun; sleep 60"], on_line=on_line)
    assert time.monotonic() - started < 30


def test_an_unknown_kind_of_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="none of process, host, guest, container"):
        open_machine("dram", "virtual")  # type: ignore[arg-type]
