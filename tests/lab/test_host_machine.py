"""The machine kind `host`: this computer with the real media that a topology names."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from pmemlab.errors import LabError, MachineDiedError, ProofError
from pmemlab.machines import host
from pmemlab.machines.guest.fact_reading import split_unreadable
from pmemlab.machines.guest.storage_facts import read_mount
from pmemlab.machines.host import open_host_machine
from pmemlab.machines.opening import open_machine
from pmemlab.machines.process import LOST_BY_POWER_CUT
from pmemlab.topology import PersistentMemory, SolidStateDisk, Topology, load_topology

PLAIN = Topology("plain", "this computer", {"kernel": os.uname().release})
ON_MEMORY = PersistentMemory("/dev/shm", size_bytes=1 << 20)


def _is_on_a_disk(folder: Path) -> bool:
    return "block_devices" in split_unreadable(read_mount(str(folder)))[0]


@pytest.fixture
def disk() -> Path:
    """A folder on a disk of this computer."""
    for parent in (Path.cwd(), Path(tempfile.gettempdir())):
        if _is_on_a_disk(parent):
            return parent
    pytest.skip("no folder here is on a disk")


@pytest.fixture
def in_memory() -> PersistentMemory:
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs /dev/shm")
    return ON_MEMORY


def test_the_host_machine_uses_the_topology_s_paths_and_removes_its_folders(
    disk: Path, in_memory: PersistentMemory
) -> None:
    proof = {"libpmem.is_pmem": 0, "mount.filesystem": "tmpfs"}
    named = replace(PLAIN, pmem=in_memory, ssd=SolidStateDisk(str(disk)), proof=proof)
    with open_host_machine(named) as machine:
        topology = machine.topology
        assert topology.pmem.path is not None
        assert topology.ssd is not None
        folders = [Path(topology.pmem.path), Path(topology.ssd.path)]
        assert [folder.parent for folder in folders] == [Path("/dev/shm"), disk]
        facts = machine.facts()
        assert facts["unproved"] == []
        assert "replaced" not in facts
        found = facts["ssd"]
        assert isinstance(found, dict)
        device = disk.stat().st_dev
        assert found["device_number"] == f"{os.major(device)}:{os.minor(device)}"
        for folder in folders:
            assert machine.run(["touch", str(folder / "file")]).returncode == 0
    assert not any(folder.exists() for folder in folders)


def test_nodes_and_environment_come_from_the_topology() -> None:
    named = replace(PLAIN, environment={"MEMKIND_DAX_KMEM_NODES": "0"})
    with open_host_machine(named) as machine:
        assert machine.run(["sh", "-c", "echo $MEMKIND_DAX_KMEM_NODES"]).stdout == "0\n"
    nodes = replace(PLAIN, pmem=PersistentMemory(nodes=(0, 4095), size_bytes=1 << 20))
    with pytest.raises(LabError, match=r"plain\.yaml.*pmem.nodes: .* no NUMA node 4095"):
        open_host_machine(nodes)


@pytest.mark.parametrize("field", ["pmem.path", "ssd.path"])
def test_a_missing_path_is_refused_before_anything_runs(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("nothing may run")

    monkeypatch.setattr(host.HostMachine, "run", run)
    gone = tmp_path / "gone"
    named = replace(
        PLAIN,
        pmem=PersistentMemory(str(gone if field == "pmem.path" else tmp_path), size_bytes=1 << 20),
        ssd=SolidStateDisk(str(gone if field == "ssd.path" else tmp_path)),
        proof={"libpmem.is_pmem": 0},
    )
    with pytest.raises(LabError) as refused:
        open_host_machine(named)
    message = str(refused.value)
    assert f"(plain.yaml): {field}: {gone} is no folder" in message
    assert "runs nothing of `provision`" in message
    assert "Your own hardware" in message
    assert [*tmp_path.iterdir()] == []


def test_the_error_for_a_lab_topology_advises_to_write_one_s_own() -> None:
    with pytest.raises(LabError, match=r"fsdax\.yaml.*/mnt/pmem0 is no folder.*one of your own"):
        open_machine(
            replace(load_topology("fsdax"), pmem=PersistentMemory("/mnt/pmem0", (), 1)), "host"
        )


def test_memory_that_is_wrongly_declared_persistent_fails_the_proof(
    in_memory: PersistentMemory,
) -> None:
    proof = {"mount.dax": True, "mount.map_sync": True, "mount.page_regions": ["region0"]}
    with pytest.raises(ProofError) as refused:
        open_host_machine(replace(PLAIN, pmem=in_memory, proof=proof))
    wrong = {mismatch.fact for mismatch in refused.value.mismatches}
    assert {"mount.dax", "mount.map_sync"} <= wrong
    assert "for the host machine write one of your own" in str(refused.value)
    assert not [*Path("/dev/shm").glob("pmemlab-machine-*/.pmemlab-probe")]


def test_a_disk_path_on_a_tmpfs_is_refused(in_memory: PersistentMemory) -> None:
    assert in_memory.path is not None
    with pytest.raises(LabError, match=r"ssd.path: is on \w+ \(tmpfs\), which is no disk"):
        open_host_machine(replace(PLAIN, ssd=SolidStateDisk(in_memory.path)))


def test_too_little_free_space_is_refused(disk: Path) -> None:
    pmem = PersistentMemory(str(disk), size_bytes=1 << 60)
    with pytest.raises(LabError, match=r"free in .* for pmem.size of topology .*: .* are free"):
        open_host_machine(replace(PLAIN, pmem=pmem, proof={"libpmem.is_pmem": 0}))


def test_a_machine_that_has_changed_fails_its_next_proof() -> None:
    with open_host_machine(PLAIN) as machine:
        machine.prove()
        machine.topology = replace(machine.topology, proof={"kernel": "another"})
        with pytest.raises(ProofError, match="expected 'another'"):
            machine.prove()


def test_the_host_machine_s_power_cuts_lose_nothing_and_are_listed_as_unproved() -> None:
    with open_host_machine(PLAIN) as machine:
        machine.power_cut()
        with pytest.raises(MachineDiedError, match="power cut"):
            machine.run(["true"])
        machine.power_on()
        assert machine.facts()["unproved"] == [LOST_BY_POWER_CUT]


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("Dell Inc.", "flags\t: fpu vme", None),
        ("QEMU", "flags\t: fpu vme", "its vendor is QEMU"),
        ("Dell Inc.", "flags\t: fpu hypervisor", "its CPU says hypervisor"),
        (None, "flags\t: fpu hypervisor", "its CPU says hypervisor"),
    ],
)
def test_a_virtual_machine_is_distinguished_from_hardware(
    vendor: str | None,
    flags: str,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    if vendor is not None:
        (tmp_path / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(host, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(host, "_VENDOR", tmp_path / "vendor")
    assert host.virtual_machine() == expected
