"""Topology files: the contents of the lab's own files, and the errors for bad ones."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.errors import TopologyError
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.guest.qemu import command_line
from pmemlab.proof import probe_command
from pmemlab.schema import parse_size
from pmemlab.topology import MISLEADING, PersistentMemory, load_topology, topology_names

_GOOD = {"name": "mine", "summary": "a machine", "proof": "{nodes: [0]}"}
_DAX = {
    "mount.dax": "true",
    "mount.map_sync": "true",
    "mount.page_regions": "[region0]",
}


def _written(folder: Path, **fields: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (_GOOD | fields).items()))
    return path


def _template(text: str) -> dict[str, str]:
    return {"backing_files": "{d: 1M}", "qemu": f"['-object mem-path={text}']"}


def _proved_by(facts: dict[str, str]) -> dict[str, str]:
    proof = ", ".join(f"{name}: {value}" for name, value in facts.items())
    return {"pmem": "{path: /mnt/pmem0, size: 1M}", "proof": f"{{nodes: [0], {proof}}}"}


def test_the_lab_has_these_topologies() -> None:
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
    # memkind's nodes stand in a topology twice: for programs (environment) and for the lab (pmem).
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
def test_qemu_s_memory_backends_add_up_to_the_machine_s_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmemlab.machines.guest.qemu.find_qemu", lambda: "qemu")
    topology = load_topology(name)
    kernel = Kernel("6.1", tmp_path, tmp_path)
    argv = command_line(topology, kernel, tmp_path, "tcg", tmp_path, ["python", "a file"], "fd=3")
    backends = [item for item in argv if item.startswith("memory-backend-ram")]
    sizes = [parse_size(item.rpartition("size=")[2]) for item in backends]
    assert not sizes or sum(sizes) == topology.memory_bytes
    assert argv[argv.index("-append") + 1].endswith('-- python "a file"')


def test_a_topology_s_own_cpu_options_are_passed_to_qemu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmemlab.machines.guest.qemu.find_qemu", lambda: "qemu")
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
        ({"memory": "512K"}, "memory: '512K' is no whole number of mebibytes; give one, as 512M"),
        ({"cpus": "0"}, "cpus: must be a whole number above 0"),
        ({"cpus": "true"}, "cpus: must be a whole number above 0"),
        ({"backing_files": "{dimm: 0}"}, r"backing_files\.dimm: 0 is no size"),
        ({"backing_files": "{/etc/passwd: 1M}"}, r"backing_files\./etc/passwd: must be a plain"),
        ({"backing_files": "{../disk: 1M}"}, r"backing_files\.\.\./disk: must be a plain name"),
        ({"backing_files": "{a/disk: 1M}"}, r"backing_files\.a/disk: must be a plain name"),
        ({"backing_files": "{1: 1M}"}, r"backing_files\.1: must be a valid string, not 1"),
        ({"environment": "{1: [x]}"}, r"environment\.1: must be a valid string, not 1"),
        ({"backing_files": "{'': 1M}"}, r"backing_files\.: must be a plain name"),
        ({"qemu": "-device nvdimm"}, "qemu: must be a list of texts"),
        ({"qemu": "['-object mem-path={dimm}']"}, r"qemu\[0\]: .*there are none"),
        ({"qemu": '["-object \'open"]'}, r"qemu\[0\]"),
        (_template("{d!r}"), r"qemu\[0\]: .*d! is no such name"),
        (_template("{d!r:>99999999}"), r"qemu\[0\]: .*d!: is no such name.*backing_files: d"),
        (_template("{d:>99999999}"), r"qemu\[0\]: .*d: is no such name"),
        (_template("{d.__class__}"), r"qemu\[0\]: .*d.__class__ is no such name"),
        (_template("{0}"), r"qemu\[0\]: .*0 is no such name"),
        ({"environment": "{NODES: 1}"}, r"environment\.NODES: must be text in quotes, not 1"),
        ({"environment": "{'A=B': '1'}"}, r"environment\.A=B: must be a variable's name"),
        ({"environment": '{A: "x\\0y"}'}, r"environment\.A: has a zero byte"),
        ({"stands_for": "{dram: nosuch-device}"}, r"stands_for\.dram: .*no device of this name"),
        ({"stands_for": "{ssd: nvme-p4511}"}, r"stands_for\.ssd: .*did you mean nvme-p4510\?"),
        (
            {"proof": "{cpus: '0'}"},
            r"proof\.cpus: must be a list of numbers, not '0': CPUs that are online, by number",
        ),
        ({"proof": "{cpus: 0}"}, r"proof\.cpus: must be a list of numbers, not 0"),
        ({"proof": "{cpus: [true]}"}, r"proof\.cpus: must be a list of numbers, not \[True\]"),
        (
            {"proof": "{regions.*.modes: [fsdax]}"},
            r"proof\.regions\.\*\.modes: must be a list of lists of texts, not \['fsdax'\]",
        ),
        (
            {"proof": "{regions.0.modes: fsdax}"},
            r"proof\.regions\.0\.modes: must be a list of texts",
        ),
        ({"proof": "{memory_bytes: [1]}"}, r"proof\.memory_bytes: must be a number, not \[1\]"),
        ({"proof": "{ssd.transport: 1}"}, r"proof\.ssd\.transport: must be a text, not 1"),
        ({"proof": "{ssd.rotates: 0}"}, r"proof\.ssd\.rotates: must be true or false, not 0"),
        (
            {"proof": "{regions: 1}"},
            r"proof\.regions: must be a list, or a mapping, not 1: a region",
        ),
        ({"environment": "{'': '1'}"}, r"environment\.: must be a variable's name"),
        ({"pmem": "{path: mnt, size: 1G}"}, r"pmem\.path: must be an absolute path"),
        ({"kernel_command_line": "one -- two"}, r"kernel_command_line: `--` would end"),
        ({"kernel_command_line": "'one=\"two'"}, r"kernel_command_line: .*close the quotes"),
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
        ({"like": "fsdax", "proof": "{kernel: null}"}, r"proof\.kernel: is empty"),
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


def test_doubled_braces_stand_for_braces(tmp_path: Path) -> None:
    template = _template("{d},a={{}}")
    assert load_topology(_written(tmp_path, **template)).qemu == ("-object mem-path={d},a={{}}",)


@pytest.mark.parametrize(
    ("nodes", "proof", "missing"),
    [
        (
            "[0]",
            "nodes: [0]",
            r"nodes_without_cpus, or slow_nodes: \[0\]; memkind.page_nodes: \[0\]",
        ),
        ("[5]", "nodes: [0, 5], nodes_without_cpus: [0]", r"slow_nodes: \[5\]; memkind.page_n"),
        (
            "[1]",
            "nodes_without_cpus: [1], memkind.page_nodes: [0]",
            r"add memkind.page_nodes: \[1\]",
        ),
        ("[1]", "slow_nodes: [1], memkind.page_nodes: []", r"add memkind.page_nodes: \[1\]"),
        ("[1]", "slow_nodes: [[1]], memkind.page_nodes: [1]", r"slow_nodes: \[1\]\. Where"),
        ("[1]", "nodes_without_cpus: 1, memkind.page_nodes: [1]", r"slow_nodes: \[1\]\. Where"),
        ("[1]", "slow_nodes: [1], memkind.page_nodes: [1]", ""),
        ("[2, 3]", "nodes_without_cpus: [2, 3, 4], memkind.page_nodes: [2]", ""),
        ("[5]", "kmem_bytes: 0", r"add memkind.page_nodes: \[5\]\. Where"),
        ("[0]", "kmem_bytes: 0, memkind.page_nodes: [0]", ""),
    ],
)
def test_nodes_declared_as_persistent_memory_need_a_proof_of_it(
    tmp_path: Path, nodes: str, proof: str, missing: str
) -> None:
    path = _written(tmp_path, pmem=f"{{nodes: {nodes}, size: 1M}}", proof=f"{{{proof}}}")
    if not missing:
        assert load_topology(path).pmem.nodes
        return
    with pytest.raises(TopologyError, match=rf"proof: must show where rows on .*{missing}"):
        load_topology(path)


def test_a_folder_declared_as_persistent_memory_needs_a_proof_of_it(tmp_path: Path) -> None:
    assert load_topology(_written(tmp_path, **_proved_by(_DAX))).pmem.path == "/mnt/pmem0"
    for name in _DAX:
        rest = {key: value for key, value in _DAX.items() if key != name}
        path = _written(tmp_path, **_proved_by(rest))
        with pytest.raises(TopologyError) as caught:
            load_topology(path)
        message = str(caught.value)
        assert message.startswith(
            f"{path}:3: proof: must show that /mnt/pmem0 is on persistent memo"
        )
        assert [fact for fact in _DAX if f"{fact}:" in message] == [name]


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("mount.dax", "false"),
        ("mount.dax", "1"),
        ("mount.map_sync", "false"),
        ("mount.page_regions", "[]"),
        ("mount.page_regions", "region0"),
        ("mount.page_regions", "[null]"),
    ],
)
def test_other_facts_do_not_prove_persistent_memory(fact: str, value: str, tmp_path: Path) -> None:
    path = _written(tmp_path, **_proved_by({**_DAX, fact: value, "libpmem.is_pmem": "1"}))
    with pytest.raises(TopologyError, match=f"proof: must show .*; add {fact}: "):
        load_topology(path)


def test_plain_memory_may_stand_for_persistent_memory_if_the_proof_says_so(
    tmp_path: Path,
) -> None:
    topology = load_topology(_written(tmp_path, **_proved_by({"libpmem.is_pmem": "0"})))
    assert topology.pmem.path == "/mnt/pmem0"


@pytest.mark.parametrize("name", [*MISLEADING])
@pytest.mark.parametrize("value", ["0", "1", ""])
def test_environment_variables_that_mislead_libpmem_are_refused(
    name: str, value: str, tmp_path: Path
) -> None:
    path = _written(tmp_path, environment=f"{{OTHER: 'x', {name}: '{value}'}}")
    with pytest.raises(TopologyError, match=rf"mine\.yaml:4: environment\.{name}: .*leave it out"):
        load_topology(path)


def test_libpmem_s_own_variables_are_among_the_misleading_ones() -> None:
    assert {"PMEM_IS_PMEM_FORCE", "PMEM_NO_FLUSH", "PMEM2_FORCE_GRANULARITY"} < MISLEADING.keys()


def test_an_error_in_an_inherited_field_names_the_line_with_like(
    tmp_path: Path,
) -> None:
    path = _written(tmp_path, like="fsdax", backing_files="{other: 1M}")
    with pytest.raises(TopologyError, match=rf"^{path}:4: qemu\[1\]: .*dimm is no such name"):
        load_topology(path)


def test_a_topology_that_is_like_another_states_only_the_differences(tmp_path: Path) -> None:
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


def test_a_topology_may_be_like_one_that_is_like_another_and_demand_less(tmp_path: Path) -> None:
    path = _written(tmp_path, like="fsdax-eadr", proof="{disks: null}")
    eadr = load_topology("fsdax-eadr")
    proof = {fact: value for fact, value in eadr.proof.items() if fact != "disks"}
    assert load_topology(path) == replace(eadr, name="mine", summary="a machine", proof=proof)


def test_a_topology_that_is_like_another_needs_its_own_summary(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: fsdax\n")
    with pytest.raises(TopologyError, match="summary: is missing"):
        load_topology(path)


def test_commands_for_new_media_are_left_out_on_used_media(tmp_path: Path) -> None:
    path = _written(tmp_path, provision="[load, {format: [label, mkfs]}, mount]")
    topology = load_topology(path)
    assert topology.provision_commands(new_media=True) == ["load", "label", "mkfs", "mount"]
    assert topology.provision_commands(new_media=False) == ["load", "mount"]


@pytest.mark.parametrize("name", topology_names())
def test_only_the_first_boot_formats_media(name: str) -> None:
    topology = load_topology(name)
    commands = topology.provision_commands(new_media=False)
    assert not [c for c in commands if re.search(r"mkfs|init-labels|create-namespace", c)]
    wanted = topology.pmem.path or (topology.ssd and topology.ssd.path)
    assert not wanted or any(c.startswith("mount") for c in commands)


def test_adr_and_eadr_differ_only_in_the_persistence_domain() -> None:
    adr, eadr = load_topology("fsdax"), load_topology("fsdax-eadr")
    domain = "regions.*.persistence_domain"
    assert (adr.proof[domain], eadr.proof[domain]) == (["memory_controller"], ["cpu_cache"])
    assert adr.machine_options == "nvdimm=on,nvdimm-persistence=mem-ctrl"
    assert eadr.machine_options == "nvdimm=on,nvdimm-persistence=cpu"
    assert (adr.provision, adr.qemu) == (eadr.provision, eadr.qemu)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nsummary: no proof\n")
    with pytest.raises(TopologyError, match="proof: is missing"):
        load_topology(path)


def test_the_error_for_an_unknown_name_lists_the_topologies() -> None:
    with pytest.raises(TopologyError, match=r"'kmemdax'.*cxl-pmem, .*dram, fsdax, .*kmem-dax"):
        load_topology("kmemdax")


@pytest.mark.timeout(20)  # opening a FIFO could wait for a writer for ever
def test_a_fifo_or_a_missing_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    with pytest.raises(TopologyError, match=r"fifo\.yaml: can't be read: .*Is a FIFO, not a file"):
        load_topology(tmp_path / "fifo.yaml")
    with pytest.raises(TopologyError, match=r"no\.yaml: can't be read"):
        load_topology(tmp_path / "no.yaml")


@given(st.integers(1, 1 << 20), st.sampled_from("KMGT"))
def test_a_size_with_a_unit_is_converted_to_bytes(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number << 10 * ("KMGT".index(unit) + 1)


@pytest.mark.parametrize("name", topology_names())
def test_a_topology_written_as_yaml_is_read_back_unchanged(name: str, tmp_path: Path) -> None:
    topology = load_topology(name)
    (tmp_path / f"{name}.yaml").write_text(topology.to_yaml())
    assert load_topology(tmp_path / f"{name}.yaml") == topology
