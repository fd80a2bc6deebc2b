"""The proof gate: every fact that a topology demands must hold, and no other fact counts."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from pmemlab.errors import Mismatch, MissingFactError, ProofError, UnknownFactError
from pmemlab.machines.guest import pmem_facts, storage_facts
from pmemlab.machines.guest.probe import read_facts
from pmemlab.proof import Proof, find_fact, mismatches, prove
from pmemlab.topology import Topology

_FACTS: dict[str, object] = {
    "nodes": [0, 1],
    "distances": {"0": {"0": 10, "1": 17}},
    "regions": [{"modes": ["fsdax"], "node": 0}, {"modes": ["devdax", "raw"]}],
    "mount": {"dax": False},
    "memory_side_caches": [],
    "unreadable": {
        "disks": "lsblk: no such program",
        "regions.1.node": "it has no file numa_node",
    },
}


def _demanding(**proof: object) -> Topology:
    named = {name.replace("__", "."): value for name, value in proof.items()}
    return Topology("demanding", "a machine", named)


def test_facts_are_found_by_dotted_names() -> None:
    assert find_fact(_FACTS, "distances.0.1") == 17
    assert find_fact(_FACTS, "regions.0.modes") == ["fsdax"]
    assert find_fact(_FACTS, "regions.*.modes") == [["fsdax"], ["devdax", "raw"]]
    assert find_fact(_FACTS, "memory_side_caches.*.bytes") == []


@pytest.mark.parametrize(
    "name", ["regions.2.modes", "distances.0.7", "distances.1.0", "mount.bytes"]
)
def test_a_fact_that_a_machine_lacks_is_absent(name: str) -> None:
    with pytest.raises(MissingFactError) as caught:
        find_fact(_FACTS, name)
    assert caught.value.kind == "absent"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("disks", "no such program"),
        ("disks.*.transport", "no such program"),
        ("disks.0.transport", "no such program"),
        ("regions.1.node", "no file numa_node"),
        ("regions.*.node", "no file numa_node"),
    ],
)
def test_a_fact_that_could_not_be_read_has_the_reason(name: str, why: str) -> None:
    with pytest.raises(MissingFactError, match=why) as caught:
        find_fact(_FACTS, name)
    assert caught.value.kind == "unreadable"


@pytest.mark.parametrize(
    "name",
    [
        "memory_side_cache",
        "mount.map_synk",
        "regions.*.mode",
        "regions.modes",
        "nodes.0",
        "mount.dax.x",
    ],
)
def test_an_unknown_fact_name_has_an_error_of_its_own(name: str) -> None:
    with pytest.raises(UnknownFactError, match="the probe knows no fact of this name"):
        find_fact(_FACTS, name)
    with pytest.raises(UnknownFactError):
        mismatches(replace(_demanding(), proof={name: None}), _FACTS)


def test_the_error_for_a_misspelt_name_suggests_a_similar_name() -> None:
    with pytest.raises(UnknownFactError, match=r"did you mean mount\.map_sync"):
        find_fact(_FACTS, "mount.map_synk")


def test_a_machine_that_is_what_it_says_is_proved() -> None:
    topology = _demanding(nodes=[0, 1], regions__0__modes=["fsdax"], memory_side_caches=[])
    assert prove(topology, _FACTS) == dict(topology.proof)


def test_the_error_names_every_fact_that_does_not_hold() -> None:
    topology = _demanding(nodes=[0], regions__2__node=0, disks=[], mount__map_sync=True)
    with pytest.raises(ProofError) as caught:
        prove(topology, _FACTS)
    assert [(m.fact, m.kind) for m in caught.value.mismatches] == [
        ("nodes", "differs"),
        ("regions.2.node", "absent"),
        ("disks", "unreadable"),
        ("mount.map_sync", "absent"),
    ]
    message = str(caught.value)
    assert "nodes: expected [0], found [0, 1]" in message
    assert "regions.2.node: expected 0, there is none: regions has 2 items" in message
    assert "disks: expected [], could not be read: lsblk: no such program" in message


def test_a_demand_for_null_never_holds() -> None:
    assert mismatches(_demanding(mount__map_sync=None, disks=None), _FACTS) == [
        Mismatch("mount.map_sync", None, None, "absent", "the machine has no mount.map_sync"),
        Mismatch("disks", None, None, "unreadable", "lsblk: no such program"),
    ]


@pytest.mark.parametrize(
    ("expected", "found"),
    [(1, True), (True, 1), (0, False), (0, None), ([1], [True]), ([{"a": 0}], [{"a": False}])],
)
def test_a_value_of_another_type_does_not_hold(expected: object, found: object) -> None:
    assert mismatches(_demanding(nodes=expected), {"nodes": found})


def test_a_proof_is_written_completely(tmp_path: Path) -> None:
    proof = Proof("dram", "tcg", _FACTS, {"nodes": [0, 1]}, {"boot": 1.5})
    proof.write(tmp_path / "proof.json")
    written = json.loads((tmp_path / "proof.json").read_text())
    assert written == {
        "topology": "dram",
        "accelerator": "tcg",
        "facts": _FACTS,
        "proved": {"nodes": [0, 1]},
        "seconds": {"boot": 1.5},
    }
    assert [path.name for path in tmp_path.iterdir()] == ["proof.json"]


def test_plain_memory_is_not_taken_for_persistent(tmp_path: Path) -> None:
    facts = read_facts(str(tmp_path), memkind=False)
    assert find_fact(facts, "mount.map_sync") is False
    assert find_fact(facts, "mount.dax") is False
    assert facts["libpmem"] == {"is_pmem": 0} or "libpmem.is_pmem" in _unreadable(facts)
    assert find_fact(facts, "mount.free_bytes")
    assert list(tmp_path.iterdir()) == []


def _unreadable(facts: Mapping[str, object]) -> dict[str, str]:
    reasons = facts["unreadable"]
    assert isinstance(reasons, dict)
    return reasons


def test_a_missing_folder_is_given_as_the_reason(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    facts = read_facts(gone, memkind=False, ssd=gone)
    assert not {"mount", "ssd"} & set(facts)
    assert all("No such file" in _unreadable(facts)[name] for name in ("mount", "ssd"))


def test_a_failed_program_is_given_as_the_reason_with_its_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ndctl").write_text("#!/bin/sh\necho no access to the bus >&2; exit 3\n")
    (tmp_path / "ndctl").chmod(0o755)
    monkeypatch.setattr("pmemlab.machines.guest.pmem_facts._ND", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = read_facts(None, memkind=False)
    assert not {"regions", "dimms"} & set(facts)
    for name in ("regions", "dimms"):
        assert "ended with status 3: no access to the bus" in _unreadable(facts)[name]
    message = str(mismatches(_demanding(regions__0__modes=["fsdax"]), facts)[0])
    assert "regions.0.modes: expected ['fsdax'], could not be read: ndctl list" in message


def test_a_missing_program_is_given_as_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pmemlab.machines.guest.pmem_facts._ND", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No such file or directory: 'ndctl'" in _unreadable(read_facts(None, False))["regions"]


def test_addresses_hidden_from_users_are_unreadable_and_not_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "iomem").write_text(
        "00000000-00000000 : Reserved\n  00000000-00000000 : System RAM\n"
    )
    monkeypatch.setattr("pmemlab.machines.guest.memory_facts._IOMEM", tmp_path / "iomem")
    facts = read_facts(None, memkind=False)
    assert "ram_bytes" not in facts
    assert "to root alone" in _unreadable(facts)["persistent_bytes"]


def test_every_machine_has_nodes_and_their_distances() -> None:
    facts = read_facts(None, memkind=False)
    nodes = facts["nodes"]
    assert isinstance(nodes, list)
    assert find_fact(facts, f"distances.{nodes[0]}.{nodes[0]}") == 10
    assert "mount" not in facts


def test_a_proof_has_only_the_facts_that_the_topology_demands() -> None:
    topology = replace(_demanding(nodes=[0, 1]), environment={"A": "B"})
    assert prove(topology, _FACTS | {"more": 1}) == {"nodes": [0, 1]}


def test_the_devices_beneath_a_mapping_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, slaves in {"dm-0": ["pmem1", "dm-1"], "dm-1": ["pmem0"]}.items():
        for slave in slaves:
            (tmp_path / name / "slaves" / slave).mkdir(parents=True)
    monkeypatch.setattr(storage_facts, "_BLOCK_DEVICES", tmp_path)
    assert storage_facts._lowest_devices("dm-0") == {"pmem0", "pmem1"}
    assert storage_facts._lowest_devices("pmem0") == {"pmem0"}


def test_a_partition_s_device_is_its_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    partition = tmp_path / "sda" / "sda1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1")
    (tmp_path / "sda1").symlink_to(partition)
    monkeypatch.setattr(storage_facts, "_BLOCK_DEVICES", tmp_path)
    assert storage_facts._lowest_devices("sda1") == {"sda"}


@pytest.mark.parametrize(
    ("devices", "disks"),
    [
        ({"pci0000:00/nvme/nvme0/nvme0n1": "0", "virtual/block/loop0": "0"}, ["nvme0n1"]),
        # With NVMe multipath, each path to a disk is a hidden block device of its own.
        (
            {
                "pci0000:00/nvme/nvme0/nvme0c0n1": "1",
                "virtual/nvme-subsystem/nvme-subsys0/nvme0n1": "0",
            },
            ["nvme0n1"],
        ),
        ({"pci0000:00/ata1/sda": "0", "LNXSYSTM:00/ndbus0/region0/pmem0": "0"}, ["sda"]),
        ({"pci0000:00/ata1/sda": None}, ["sda"]),  # an old kernel has no `hidden`
    ],
)
def test_a_disk_is_listed_once_on_every_kernel(
    devices: dict[str, str | None],
    disks: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "block").mkdir()
    for device, hidden in devices.items():
        folder = tmp_path / "devices" / device
        folder.mkdir(parents=True)
        if hidden is not None:
            (folder / "hidden").write_text(f"{hidden}\n")
        (tmp_path / "block" / folder.name).symlink_to(folder)

    def listed(argv: list[str]) -> dict[str, object]:
        names = [Path(word).name for word in argv if word.startswith("/dev/")]
        size = {"maj:min": "259:0", "tran": "nvme", "rota": False, "size": 512}
        return {"blockdevices": [{"name": name, **size} for name in names]}

    monkeypatch.setattr(storage_facts, "_SYS", tmp_path)
    monkeypatch.setattr(storage_facts, "run_json_program", listed)
    assert [disk["name"] for disk in storage_facts.read_disks()] == disks


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("0 520192 linear 259:0 0", {"target": "linear"}),
        (
            "0 520192 striped 2 4096 259:0 0 259:1 0",
            {"target": "striped", "stripes": 2, "chunk_bytes": 2 << 20},
        ),
    ],
)
def test_a_mapping_s_targets_are_read(line: str, target: dict[str, object]) -> None:
    assert storage_facts._target(line.split()) == target


def test_the_pages_of_plain_memory_are_in_no_region(tmp_path: Path) -> None:
    facts = read_facts(str(tmp_path), memkind=False)
    if "mount.page_regions" not in _unreadable(facts):  # only root may ask
        assert find_fact(facts, "mount.page_regions") == ["none"]


def test_memkind_s_error_comes_back_from_the_child_that_called_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> list[int]:
        raise OSError("no memory of that kind")

    monkeypatch.setattr(pmem_facts, "_memkind_nodes", refuse)
    facts = read_facts(None, memkind=True)
    for name in ("memkind.page_nodes", "memkind.page_nodes_from.0"):
        assert _unreadable(facts)[name] == "no memory of that kind"


def test_a_child_that_dies_while_it_calls_memkind_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pmem_facts, "_memkind_nodes", lambda: os.kill(os.getpid(), 9))
    reason = _unreadable(read_facts(None, memkind=True))["memkind.page_nodes"]
    assert reason == "the process that asked memkind died"


def test_memkind_is_called_from_the_cpus_of_each_node_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pmem_facts, "_memkind_nodes", lambda: sorted(os.sched_getaffinity(0)))
    facts = read_facts(None, memkind=True)
    nodes = find_fact(facts, "nodes_with_cpus")
    assert isinstance(nodes, list)
    asked = [find_fact(facts, f"memkind.page_nodes_from.{node}") for node in nodes]
    assert sorted(cpu for cpus in asked if isinstance(cpus, list) for cpu in cpus) == find_fact(
        facts, "memkind.page_nodes"
    )


@pytest.fixture
def _full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", mock.Mock(side_effect=full))


@pytest.mark.usefixtures("_full_disk")
@pytest.mark.parametrize("fact", [pmem_facts.map_sync, pmem_facts.page_regions])
def test_in_a_full_folder_a_file_of_the_user_is_read_and_not_changed(
    tmp_path: Path, fact: Callable[[str], object]
) -> None:
    rows = tmp_path / "tables" / "rows"
    rows.parent.mkdir()
    rows.write_bytes(os.urandom(5 * mmap.PAGESIZE + 7))
    (tmp_path / "small").write_bytes(b"1")
    with (tmp_path / "holes").open("wb") as holes:
        holes.truncate(1 << 30)
    (tmp_path / "link").symlink_to("holes")
    before = (rows.read_bytes(), rows.stat().st_mtime_ns)
    assert pmem_facts._file_in_full_folder(str(tmp_path)) == rows
    with contextlib.suppress(PermissionError, FileNotFoundError):  # page frames are for root
        assert fact(str(tmp_path)) in (False, True, ["none"])
    assert (rows.read_bytes(), rows.stat().st_mtime_ns) == before


@pytest.mark.usefixtures("_full_disk")
def test_a_full_folder_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is full, and has no file that could be mapped"):
        pmem_facts.map_sync(str(tmp_path))


def test_pages_that_were_never_written_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kpageflags = tmp_path / "kpageflags"
    written, zeros, flags = 0, 1, (1 << 11, 1 << 24)  # of frames 0 and 1
    kpageflags.write_bytes(struct.pack("=2Q", *flags))
    monkeypatch.setattr(pmem_facts, "_KPAGEFLAGS", kpageflags)
    pages = [frame * mmap.PAGESIZE for frame in (written, zeros, zeros)]
    assert pmem_facts._without_zero_page(pages, "/mnt") == pages[:1]
    with pytest.raises(OSError, match=r"is full, and its largest file was never written: '/mnt'"):
        pmem_facts._without_zero_page(pages[1:], "/mnt")
