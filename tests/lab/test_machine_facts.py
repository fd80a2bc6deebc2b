"""Each topology's proof holds for the facts of its own machine, and of no other machine.

The facts were read in real guests: see `recorded_facts.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from recorded_facts import recorded_facts, recorded_names

from pmemlab.errors import Mismatch
from pmemlab.machines.guest.fact_names import FACTS, is_fact_name, shape_error
from pmemlab.proof import find_fact, mismatches
from pmemlab.topology import load_topology, topology_names

TOPOLOGIES = {name: load_topology(name) for name in topology_names()}
RECORDED = {name: recorded_facts(name) for name in recorded_names()}
OF_EACH_MACHINE = pytest.mark.parametrize("name", TOPOLOGIES)


def _leaves(value: object, name: str = "") -> Iterator[str]:
    """Yields the dotted names of all facts that are not mappings or lists of mappings."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}.{index}")
    else:
        yield name


def _places(facts: dict[str, Any], fact: str) -> list[tuple[Any, Any, str]]:
    """Returns (container, key, dotted name) for each place of a fact that a proof demands."""
    places: list[tuple[Any, Any, str]] = [({"": facts}, "", "")]
    for part in fact.split("."):
        below = []
        for container, key, name in places:
            value = container[key]
            keys: list[Any] = [part]
            if isinstance(value, list):
                keys = [*range(len(value))] if part == "*" else [int(part)]
            below += [(value, key, f"{name}.{key}".lstrip(".")) for key in keys]
        places = below
    return places


def _another(value: object) -> object:
    """Returns a different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"{value} "
    assert isinstance(value, list)
    return [*value, *(value or ["another"])]


def test_every_topology_s_facts_are_recorded() -> None:
    assert [*RECORDED] == [*TOPOLOGIES]


@OF_EACH_MACHINE
def test_a_proof_holds_for_its_own_machine_and_for_no_other(name: str) -> None:
    assert mismatches(TOPOLOGIES[name], RECORDED[name]) == []
    fits = [other for other in RECORDED if not mismatches(TOPOLOGIES[name], RECORDED[other])]
    assert fits == [name]


@pytest.mark.parametrize(
    ("name", "fact", "found"),
    [("fsdax", "mount.bytes", 475889664), ("two-sockets", "node_bytes", 1 << 28)],
)
def test_persistent_memory_smaller_than_its_size_fails_the_proof(
    name: str, fact: str, found: int
) -> None:
    topology = TOPOLOGIES[name]
    larger = replace(topology, pmem=replace(topology.pmem, size_bytes=512 << 20))
    expected = "at least 536870912, the topology's pmem.size"
    assert mismatches(larger, RECORDED[name]) == [Mismatch(fact, expected, found)]


@OF_EACH_MACHINE
def test_a_fact_with_another_value_fails_the_proof(name: str) -> None:
    for fact in TOPOLOGIES[name].proof:
        count = len(_places(RECORDED[name], fact))
        assert count, fact
        for index in range(count):
            facts = copy.deepcopy(RECORDED[name])
            container, key, _ = _places(facts, fact)[index]
            container[key] = _another(container[key])
            assert [m.fact for m in mismatches(TOPOLOGIES[name], facts)] == [fact]


@OF_EACH_MACHINE
@pytest.mark.parametrize("why", ["the disk has gone", None])
def test_a_missing_fact_fails_the_proof(name: str, why: str | None) -> None:
    for fact in TOPOLOGIES[name].proof:
        facts = copy.deepcopy(RECORDED[name])
        for container, key, dotted in _places(facts, fact):
            del container[key]
            if why:
                facts["unreadable"][dotted] = why
        wrong = mismatches(TOPOLOGIES[name], facts)
        assert [(m.fact, m.kind) for m in wrong] == [(fact, "unreadable" if why else "absent")]
        assert wrong[0].why == why or why is None


@OF_EACH_MACHINE
def test_every_fact_of_a_machine_has_a_name_that_a_proof_may_use(name: str) -> None:
    facts = {key: value for key, value in RECORDED[name].items() if key != "unreadable"}
    unknown = [leaf for leaf in _leaves(facts) if not is_fact_name(leaf)]
    assert unknown == []


def test_every_fact_name_is_a_fact_of_some_machine() -> None:
    leaves = {leaf for facts in RECORDED.values() for leaf in _leaves(facts)}
    unused = [fact for fact in FACTS if not any(_matches(fact, leaf) for leaf in leaves)]
    assert unused == []


def test_a_proof_may_demand_only_values_of_a_fact_s_own_type() -> None:
    others: list[object] = [1, "1", True, [1], ["1"], [True], [[1]]]
    for facts in RECORDED.values():
        for leaf in _leaves({key: value for key, value in facts.items() if key != "unreadable"}):
            for container, key, _ in _places(facts, leaf):
                value = container[key]
                if value in (None, [], {}):
                    continue
                assert shape_error(leaf, value) is None
                fits = [other for other in others if shape_error(leaf, other) is None]
                assert [_types(other) for other in fits] == [_types(value)], leaf  # 1 == True


def _types(value: object) -> object:
    return [_types(value[0])] if isinstance(value, list) else type(value)


def _matches(fact: str, leaf: str) -> bool:
    pairs = list(zip(fact.split("."), leaf.split("."), strict=False))
    return fact.count(".") == leaf.count(".") and all(a in ("*", b) for a, b in pairs)


@OF_EACH_MACHINE
def test_a_machine_s_facts_contain_the_device_numbers_of_its_media(name: str) -> None:
    topology, facts = TOPOLOGIES[name], RECORDED[name]
    if topology.ssd:
        numbers = find_fact(facts, "disks.*.device_number")
        assert isinstance(numbers, list)
        assert find_fact(facts, "ssd.device_number") in numbers
    if topology.pmem.path:
        assert find_fact(facts, "mount.device_number")
