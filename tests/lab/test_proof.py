"""The proof gate: only what a topology demands counts, and all of it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pmemlab.errors import LabError, Mismatch, ProofError
from pmemlab.guest.probe import read_facts
from pmemlab.proof import Proof, find_fact, mismatches, prove
from pmemlab.topology import Topology

_FACTS: dict[str, object] = {
    "nodes": [0, 1],
    "distances": {"0": {"0": 10, "1": 17}},
    "regions": [{"modes": ["fsdax"]}],
    "mount": {"dax": False},
    "memory_side_cache": None,
}


def _demanding(**proof: object) -> Topology:
    named = {name.replace("__", "."): value for name, value in proof.items()}
    return Topology("demanding", "a machine", named)


def test_facts_are_found_by_dotted_names() -> None:
    assert find_fact(_FACTS, "distances.0.1") == 17
    assert find_fact(_FACTS, "regions.0.modes") == ["fsdax"]
    for name in ("regions.1.modes", "regions.modes", "nodes.0.x", "none", "mount.dax.x"):
        assert find_fact(_FACTS, name) is None


def test_a_machine_that_is_what_it_says_is_proved() -> None:
    topology = _demanding(nodes=[0, 1], regions__0__modes=["fsdax"], memory_side_cache=None)
    assert prove(topology, _FACTS) == dict(topology.proof)


def test_every_fact_that_does_not_hold_is_told() -> None:
    topology = _demanding(nodes=[0], distances__0__1=20, mount__map_sync=True)
    with pytest.raises(ProofError) as caught:
        prove(topology, _FACTS)
    assert caught.value.mismatches == (
        Mismatch("nodes", [0], [0, 1]),
        Mismatch("distances.0.1", 20, 17),
        Mismatch("mount.map_sync", True, None),
    )
    assert "nodes: expected [0], found [0, 1]" in str(caught.value)


@pytest.mark.parametrize(("expected", "found"), [(1, True), (True, 1), (0, False), (0, None)])
def test_a_value_of_another_type_does_not_hold(expected: object, found: object) -> None:
    assert mismatches(_demanding(fact=expected), {"fact": found})


def test_a_proof_is_written_whole_and_read_back(tmp_path: Path) -> None:
    proof = Proof("dram", "tcg", _FACTS, {"nodes": [0, 1]}, {"boot": 1.5})
    proof.write(tmp_path / "proof.json")
    assert Proof.read(tmp_path / "proof.json") == proof
    assert [path.name for path in tmp_path.iterdir()] == ["proof.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"topology": "dram"}'])
def test_a_file_that_is_no_proof_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "proof.json"
    path.write_text(text)
    with pytest.raises(LabError, match=r"proof\.json"):
        Proof.read(path)


def test_plain_memory_is_not_taken_for_persistent(tmp_path: Path) -> None:
    facts = read_facts(str(tmp_path), memkind=False)
    assert find_fact(facts, "mount.map_sync") is False
    assert find_fact(facts, "mount.dax") is False
    assert find_fact(facts, "libpmem.is_pmem") in (0, None)  # None: no libpmem here
    assert find_fact(facts, "mount.free_bytes")
    assert list(tmp_path.iterdir()) == []


def test_every_machine_has_nodes_and_their_distances() -> None:
    facts = read_facts(None, memkind=False)
    nodes = facts["nodes"]
    assert isinstance(nodes, list)
    assert find_fact(facts, f"distances.{nodes[0]}.{nodes[0]}") == 10
    assert "mount" not in facts


def test_a_topology_s_proof_is_of_its_own_names_only() -> None:
    topology = replace(_demanding(nodes=[0, 1]), environment={"A": "B"})
    assert prove(topology, _FACTS | {"more": 1}) == {"nodes": [0, 1]}
