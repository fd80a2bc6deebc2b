"""The section on machines: what each was proved to be, and all facts read back from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pmemlab.errors import LabError
from pmemlab.proof import find_fact
from pmemlab.report.documents import Results
from pmemlab.report.page import Block, Fold, Section, Table
from pmemlab.scenarios.rows import ResultRow
from pmemlab.topology import load_topology, topology_names

__all__ = ["proofs"]

_TITLE = "The machines' proofs"
_UNPROVED = "unproved"
_REPLACED = "replaced"


def proofs(results: Results) -> Section:
    """Returns a row for each machine with the demanded facts, and below it all facts of each."""
    machines: dict[tuple[str, str], ResultRow] = {}
    for row in sorted(results.rows, key=lambda row: row.time):
        machines[row.topology, row.machine_label] = row
    if not machines:
        missing_note = "No machine was used here; `make scenarios` proves and uses the lab's."
        return Section("proofs", _TITLE, missing_note=missing_note)
    rows = [machines[key] for key in sorted(machines)]
    table = Table(
        "The machines that results here were taken on",
        ("topology", "machine", "kernel", "proof", "replaced"),
        [
            (
                row.topology,
                row.machine_label,
                str(row.facts.get("kernel", "–")),
                _proof(row),
                _replaced(row),
            )
            for row in rows
        ],
    )
    blocks: list[Block] = [
        "Before anything runs on a machine, its facts are read back from its kernel and held "
        "against what its topology demands. A process is this computer as it is, with other media "
        "in the place of the topology's, and can't prove all of it. A host is this computer with "
        "the media that the topology names.",
        table,
    ]
    blocks += [
        Fold(
            f"Facts of {row.topology} on {row.machine_label}",
            Table(
                f"Facts of {row.topology} on {row.machine_label}, at {row.time}",
                ("fact", "value", "demanded"),
                [*_demanded(row), *((name, value, "") for name, value in _flattened(row.facts))],
            ),
        )
        for row in rows
    ]
    return Section("proofs", _TITLE, blocks)


def _proof(row: ResultRow) -> str:
    unproved = row.facts.get(_UNPROVED)
    if unproved:
        assert isinstance(unproved, list)  # checked by the results' reader
        return f"doesn't have, or can't prove: {', '.join(map(str, unproved))}"
    demanded = len(_demanded(row))
    return f"all {demanded} facts that are demanded hold" if demanded else "all that is demanded"


def _replaced(row: ResultRow) -> str:
    """Returns the machine's replacements for the topology's media."""
    replaced = row.facts.get(_REPLACED)
    return "; ".join(map(str, replaced)) if isinstance(replaced, list) and replaced else "–"


def _demanded(row: ResultRow) -> list[tuple[str, str, str]]:
    """Returns the facts that a topology of the lab's demands, as this machine had them.

    A topology of the user's own gives none, since its file isn't known here.
    """
    if row.topology not in topology_names():
        return []
    found = []
    for name in load_topology(row.topology).proof:
        try:
            found.append((name, json.dumps(find_fact(row.facts, name)), "yes"))
        except LabError:  # a process lacks it, or the topology has changed
            continue
    return found


def _flattened(facts: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields facts by their dotted names; a list of plain values is one fact."""
    for name, value in facts.items():
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value)
