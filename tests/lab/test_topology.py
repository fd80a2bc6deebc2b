"""Topology files: what the lab's own say, and what is said of bad ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.errors import TopologyError
from pmemlab.guest.kernel import Kernel
from pmemlab.guest.qemu import command_line
from pmemlab.proof import probe_command
from pmemlab.schema import parse_size
from pmemlab.topology import PersistentMemory, load_topology, topology_names

_GOOD = {"name": "mine", "summary": "a machine", "proof": "{nodes: [0]}"}


def _written(folder: Path, **fields: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (_GOOD | fields).items()))
    return path


def test_the_guide_s_modes_a_yardstick_and_others_are_there() -> None:
    assert topology_names() == [
        "cxl-pmem",
        "cxl-ram",
        "dram",
        "fsdax",
        "fsdax-eadr",
        "fsdax-memmap",
        "fsdax-nvme",
        "interleaved",
        "kmem-dax",
        "memory-mode",
        "mixed-mode",
        "numa-cpuless",
        "numa-fake",
        "nvme",
        "sata",
        "two-sockets",
    ]


@pytest.mark.parametrize("name", topology_names())
def test_the_lab_s_own_topologies_load(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    # Where memkind is to go is said twice, by what it is for: to the program, and to its reader.
    wanted = ",".join(map(str, topology.pmem.nodes)) or None
    assert topology.environment.get("MEMKIND_DAX_KMEM_NODES") == wanted


@pytest.mark.parametrize("name", topology_names())
def test_a_machine_proves_where_its_persistent_memory_is(name: str) -> None:
    topology = load_topology(name)
    if topology.pmem.path:
        assert topology.proof["mount.map_sync"] is True
        assert topology.proof["libpmem.is_pmem"] == 1
        assert "--path" in probe_command(topology, "python")
    if topology.pmem.nodes:
        assert topology.proof["memkind.page_nodes"] == list(topology.pmem.nodes)


@pytest.mark.parametrize("name", topology_names())
def test_a_machine_proves_which_disk_it_has(name: str) -> None:
    topology = load_topology(name)
    assert ("--ssd" in probe_command(topology, "python")) == (topology.ssd is not None)
    if topology.ssd:
        assert topology.proof["disks.*.transport"] == [topology.proof["ssd.transport"]]
        assert topology.proof["ssd.rotates"] is False
        mount = f"mount {topology.proof['ssd.device']} {topology.ssd.path}"
        assert mount in topology.provision_commands(new_media=False)


@pytest.mark.parametrize("name", topology_names())
def test_qemu_s_memory_is_the_machine_s(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmemlab.guest.qemu.find_qemu", lambda: "qemu")
    topology = load_topology(name)
    kernel = Kernel("6.1", tmp_path, tmp_path)
    argv = command_line(topology, kernel, tmp_path, "tcg", tmp_path, ["python", "a file"], "fd=3")
    backends = [item for item in argv if item.startswith("memory-backend-ram")]
    sizes = [parse_size(item.rpartition("size=")[2]) for item in backends]
    assert not sizes or sum(sizes) == topology.memory_bytes
    assert argv[argv.index("-append") + 1].endswith('-- python "a file"')


def test_a_topology_s_own_cpu_options_are_qemu_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmemlab.guest.qemu.find_qemu", lambda: "qemu")
    topology = load_topology("cxl-ram")
    kernel = Kernel("6.12", tmp_path, tmp_path)
    argv = command_line(topology, kernel, tmp_path, "kvm", tmp_path, ["python"], "fd=3")
    assert argv[argv.index("-cpu") + 1] == "host,-hypervisor"


def test_fields_have_their_documented_defaults(tmp_path: Path) -> None:
    topology = load_topology(_written(tmp_path))
    assert (topology.cpus, topology.memory_bytes) == (1, 1 << 30)
    assert topology.pmem == PersistentMemory()
    assert (topology.qemu, topology.provision, topology.environment) == ((), (), {})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "other"}, "name: is 'other', but the file is called mine.yaml"),
        ({"summary": "''"}, "summary: must be text"),
        ({"proof": "{}"}, "proof: must be a mapping"),
        (
            {"proof": "{memory_side_cache: 1}"},
            r"proof\.memory_side_cache: .* no fact of this",
        ),
        ({"proof": "{regions: null}"}, r"proof\.regions: is empty"),
        ({"memory": "lots"}, "memory: 'lots' is no size"),
        ({"memory": "-1"}, "memory: -1 is no size"),
        ({"cpus": "0"}, "cpus: must be a whole number above 0"),
        ({"cpus": "true"}, "cpus: must be a whole number above 0"),
        ({"backing_files": "{dimm: 0}"}, r"backing_files\.dimm: 0 is no size"),
        ({"qemu": "-device nvdimm"}, "qemu: must be a list of texts"),
        ({"qemu": "['-object mem-path={dimm}']"}, r"qemu\[0\]: .*there are none"),
        ({"qemu": '["-object \'open"]'}, r"qemu\[0\]"),
        ({"environment": "{NODES: 1}"}, r"environment\.NODES: must be text in quotes, not 1"),
        ({"pmem": "{path: mnt, size: 1G}"}, r"pmem\.path: must be an absolute path"),
        ({"pmem": "{nodes: [one], size: 1G}"}, r"pmem\.nodes: must be a list of node numbers"),
        ({"pmem": "{size: 1G}"}, "pmem: must have a path or nodes"),
        ({"pmem": "{nodes: [1]}"}, r"pmem\.size: is missing"),
        (
            {"pmem": "{nodes: [1], siez: 1G}"},
            r"pmem.*siez: is no field here; there are path, nodes, size",
        ),
        ({"ssd": "{path: mnt}"}, r"ssd\.path: must be an absolute path"),
        ({"ssd": "{size: 1G}"}, r"ssd.*size: is no field here; there are path"),
        ({"requires": "{qemu: 10.0}"}, r"requires\.qemu: must be a version in quotes, not 10\.0"),
        ({"requires": "{kernel: '6.x'}"}, r"requires\.kernel: must be a version in quotes"),
        ({"requires": "{cxl: '77'}"}, r"requires\.cxl: is no field here; there are qemu, kernel"),
        ({"provision": "mkfs"}, "provision: must be a list"),
        ({"provision": "[{format: mkfs}]"}, r"provision\[0\]\.format: must be a list of commands"),
        (
            {"provision": "['true', {}]"},
            r"provision\[1\]: must be a command, or format:",
        ),
        (
            {"provision": "[{mount: [x]}]"},
            r"provision\[0\]: must be a command, or format:",
        ),
        ({"like": "fsdx"}, "like: 'fsdx' is none of the lab's own; there are cxl-pmem"),
        ({"like": "fsdax-eadr"}, "like: fsdax-eadr is like another one itself"),
        ({"memroy": "1G"}, "memroy: is no field here; there are like, name, summary"),
    ],
)
def test_a_bad_field_is_named_with_its_file(
    tmp_path: Path, fields: dict[str, str], named: str
) -> None:
    path = _written(tmp_path, **fields)
    with pytest.raises(TopologyError, match=named) as caught:
        load_topology(path)
    assert str(path) in str(caught.value)


def test_one_that_is_like_another_says_but_what_differs(tmp_path: Path) -> None:
    path = _written(tmp_path, like="fsdax", cpus="2", proof="{cpus: [0, 1]}")
    topology, fsdax = load_topology(path), load_topology("fsdax")
    differs = replace(
        fsdax,
        name="mine",
        summary="a machine",
        cpus=2,
        proof={**fsdax.proof, "cpus": [0, 1]},
    )
    assert topology == differs


def test_one_that_is_like_another_has_a_summary_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: fsdax\n")
    with pytest.raises(TopologyError, match="summary: is missing"):
        load_topology(path)


def test_commands_for_new_media_are_left_out_on_used_ones(tmp_path: Path) -> None:
    path = _written(tmp_path, provision="[load, {format: [label, mkfs]}, mount]")
    topology = load_topology(path)
    assert topology.provision_commands(new_media=True) == ["load", "label", "mkfs", "mount"]
    assert topology.provision_commands(new_media=False) == ["load", "mount"]


@pytest.mark.parametrize("name", topology_names())
def test_no_boot_but_the_first_destroys_what_media_hold(name: str) -> None:
    topology = load_topology(name)
    commands = topology.provision_commands(new_media=False)
    assert not [c for c in commands if re.search(r"mkfs|init-labels|create-namespace", c)]
    wanted = topology.pmem.path or (topology.ssd and topology.ssd.path)
    assert not wanted or any(c.startswith("mount") for c in commands)


def test_adr_and_eadr_differ_in_the_persistence_domain_alone() -> None:
    adr, eadr = load_topology("fsdax"), load_topology("fsdax-eadr")
    domain = "regions.*.persistence_domain"
    assert (adr.proof[domain], eadr.proof[domain]) == (["memory_controller"], ["cpu_cache"])
    assert adr.machine_options == "nvdimm=on,nvdimm-persistence=mem-ctrl"
    assert eadr.machine_options == "nvdimm=on,nvdimm-persistence=cpu"
    assert (adr.provision, adr.qemu) == (eadr.provision, eadr.qemu)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nsummary: no proof\n")
    with pytest.raises(TopologyError, match="proof: is missing"):
        load_topology(path)


@pytest.mark.parametrize("text", ["", "- a list", "a: [", "\x00"])
def test_a_file_that_is_no_topology_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(TopologyError, match=r"mine\.yaml"):
        load_topology(path)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(TopologyError, match=r"'kmemdax'.*cxl-pmem, .*dram, fsdax, .*kmem-dax"):
        load_topology("kmemdax")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"no\.yaml: can't be read"):
        load_topology(tmp_path / "no.yaml")


@given(st.integers(1, 1 << 20), st.sampled_from("KMGT"))
def test_a_size_with_a_unit_is_that_many_bytes(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number << 10 * ("KMGT".index(unit) + 1)
