"""Judges whether a workload's document passes its scenario."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pmemlab.errors import MissingRequirementError
from pmemlab.machines.protocol import Result
from pmemlab.scenarios.command import SSD_KINDS
from pmemlab.scenarios.document import PMEM, SSD, PowerCuts, RowPlacement, Scenario
from pmemlab.scenarios.power_cuts import PowerCut
from pmemlab.scenarios.program import read_program_run
from pmemlab.scenarios.runner import Outcome
from pmemlab.topology import Topology

__all__ = [
    "ExpectationError",
    "judge",
    "judge_placement",
    "judge_power_cuts",
    "parse_document",
    "parse_outcome",
]

_SHOWN_OUTPUT_LINES = 30
_SHOWN_STACK_LINES = 200
# Exit statuses of coreutils' timeout: the command ended by SIGABRT, or had to be killed.
_TIMED_OUT = (124, 137, -9)
_TIMEOUT_SAYS = "timeout: sending signal ABRT"
_SHOWN_TABLES = 5
_MIN_WRITTEN = 0.5


class ExpectationError(AssertionError):
    """The machine was what it says, but the program on it did not do what it must."""


def parse_outcome(scenario: Scenario, storage_type: str, outcome: Outcome) -> dict[str, Any]:
    """Returns the document that a workload, or a program of the user's, printed.

    `reference` is None for a program that is not compared. Raises `ExpectationError` if the program
    failed, or printed no document.
    """
    if not scenario.workload.command:
        return parse_document(outcome.result)
    _check_end(outcome.result)
    reference = outcome.reference
    return {
        "workload": "command",
        "run": read_program_run(
            outcome.result.stdout, outcome.findings, storage_type, ExpectationError
        ),
        "reference": reference
        and read_program_run(
            reference.result.stdout,
            reference.findings,
            scenario.reference_storage_type,
            ExpectationError,
        ),
    }


def parse_document(result: Result) -> dict[str, Any]:
    """Returns a workload's document. Raises `ExpectationError` if it failed or printed none."""
    _check_end(result)
    try:
        document = json.loads(result.stdout)
        if document["workload"] and document["run"] and document["reference"]:
            return dict(document)
    except (ValueError, TypeError, KeyError):
        pass
    raise ExpectationError(
        "the workload ended well but printed no document:\n" + _tail(result.stdout + result.stderr)
    )


def _check_end(result: Result) -> None:
    """Raises `ExpectationError` if a workload did not end well."""
    if result.returncode in _TIMED_OUT and _TIMEOUT_SAYS in result.stderr:
        raise ExpectationError(
            "the workload was still running when its time was up; this is where it was:\n"
            + _tail(result.stderr, _SHOWN_STACK_LINES)
        )
    if result.returncode != 0:
        raise ExpectationError(
            f"the workload ended with status {result.returncode}:\n" + _tail(result.said)
        )


def judge_power_cuts(requested: PowerCuts, performed: Sequence[PowerCut], result: Result) -> None:
    """Raises `ExpectationError` if the command ended well before one of its power cuts."""
    if len(performed) == requested.count or result.returncode:
        return
    line = f"no line of it had {requested.after_line!r}, or " if requested.after_line else ""
    raise ExpectationError(
        f"the workload ended before power cut {len(performed) + 1} of {requested.count}: "
        f"{line}it was too fast for within_s"
    )


def judge(
    scenario: Scenario,
    storage_type: str,
    document: Mapping[str, Any],
    power_cuts: Sequence[PowerCut] = (),
) -> None:
    """Raises `ExpectationError` with everything in `document` that does not hold.

    Any machine can show this; `judge_placement` judges where rows lie.
    """
    run, reference = document["run"], document["reference"]
    _raise_if_any(
        *_other_storage_type(run, storage_type),
        *(_other_storage_type(reference, scenario.reference_storage_type) if reference else ()),
        *(_differences(reference, run) if reference else ()),
        *_low_auc(scenario.expect.auc_above, run["auc"]),
        *_wrong_spread(len(scenario.expect.tiers), run["tables"]),
        *_wrong_cold_rows(run, scenario),
        *_wrong_count(run.get("plain")),
        *_lost_steps(power_cuts, run),
        *_wrong_checksums(power_cuts, run, reference),
    )


def judge_placement(
    scenario: Scenario,
    topology: Topology,
    facts: Mapping[str, Any],
    facts_after: Mapping[str, Any],
    document: Mapping[str, Any],
) -> None:
    """Raises `ExpectationError` if rows lie elsewhere than they must, and `MissingRequirementError`
    if rows must lie on a disk that this computer lacks.

    facts, facts_after: the machine's, before and after the run.
    REQUIRES: the machine was proved to be of this topology.
    """
    expect = scenario.expect
    placements = expect.tiers if expect.rows is None else (expect.rows,)
    _raise_if_any(
        *_misplaced_tables(
            [placement.resolved_on(topology) for placement in placements],
            [_device_of(placement, facts) for placement in placements],
            document["run"]["tables"],
        ),
        *_missing_traffic(placements, facts, facts_after),
    )


def _raise_if_any(*problems: str) -> None:
    if problems:
        raise ExpectationError("\n".join(problems))


def _other_storage_type(run: Mapping[str, Any], expected: str) -> Iterator[str]:
    if run["storage_type"] != expected:
        yield f"the run was on {run['storage_type']}, not on {expected}"


def _differences(reference: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    names = reference["storage_type"], run["storage_type"]
    first = run.get("first_step", 0)  # above 0 if the run goes on from a save
    ours, theirs = run["losses"], reference["losses"][first:]
    if not ours:
        yield "no step was trained"
    if len(ours) != len(theirs):
        yield f"{len(theirs)} steps on {names[0]}, but {len(ours)} on {names[1]}"
    for step, (expected, found) in enumerate(zip(theirs, ours, strict=False), start=first + 1):
        if _exact(expected) != _exact(found):
            yield f"step {step}: the loss is {expected} on {names[0]}, but {found} on {names[1]}"
            break  # later steps differ as a consequence
    if run["state_sha256"] != reference["state_sha256"]:
        yield f"the tables' rows after training differ between {names[0]} and {names[1]}"


def _exact(loss: float | str) -> float | str:
    """Returns a loss as its exact text, since no two NaNs are equal."""
    return loss.hex() if isinstance(loss, float) else loss


def _low_auc(threshold: float | None, auc: float | None) -> Iterator[str]:
    if threshold is not None and (auc is None or auc <= threshold):
        yield f"the AUC on held-out rows is {auc}; it must exceed {threshold}"


def _wrong_spread(tiers: int, tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields faults in how rows are spread over several tiers, and in whether they moved."""
    if not tiers:
        return
    in_tiers = [0] * tiers
    for table in tables:
        levels = table["stats"]["tiers"]
        if len(levels) != tiers:
            yield f"table {table['name']} has {len(levels)} tiers; {tiers} are expected"
            return
        for t, level in enumerate(levels):
            in_tiers[t] += level["rows"]
            below = sum(lower["rows"] for lower in levels[t + 1 :])
            capacity = level["capacity_rows"]
            if capacity is not None and (
                level["rows"] > capacity or (level["rows"] < capacity and below)
            ):
                yield (
                    f"table {table['name']}, tier {level['name']}: has {level['rows']} rows and "
                    f"room for {capacity}, with {below} rows below it"
                )
    for t, rows in enumerate(in_tiers):
        if rows == 0:
            yield f"no table has rows in its tier {t}"
    for movement in ("promotions", "demotions"):
        if not any(table["stats"][movement] for table in tables):
            yield f"there were no {movement}"


def _wrong_cold_rows(run: Mapping[str, Any], scenario: Scenario) -> Iterator[str]:
    """Yields faults in rows that `tables` read from the last tier, uncached."""
    if not scenario.expect.tiers or scenario.workload.name != "tables":
        return
    cold = run["cold"]
    if not cold or not cold["rows"]:
        yield "no cold row was looked up"
    elif cold["wrong"]:
        yield f"{cold['wrong']} of {cold['rows']} cold rows aren't what the reference has"


def _wrong_count(plain: Mapping[str, Any] | None) -> Iterator[str]:
    if plain is None:
        return
    if plain["wrong_keys"]:
        yield f"{plain['wrong_keys']} keys have a row and should have none, or the other way round"
    if plain["wrong_frequencies"]:
        yield f"{plain['wrong_frequencies']} rows have another frequency than a plain count"


def _lost_steps(power_cuts: Sequence[PowerCut], run: Mapping[str, Any]) -> Iterator[str]:
    """Yields checkpoints that were reported as saved and were gone after a power cut."""
    if not power_cuts:
        return
    resumed = [*map(_resumed_step, power_cuts[1:]), run["first_step"]]
    kept = 0
    for number, (cut, went_on_from) in enumerate(zip(power_cuts, resumed, strict=True), start=1):
        kept = max(kept, cut.kept_step)
        if went_on_from is not None and went_on_from < kept:
            yield (
                f"after power cut {number} the workload went on from step {went_on_from}, though "
                f"it had kept step {kept}"
            )
    if run["first_step"] == 0:
        yield "every run began anew: no power cut came after something was kept"


def _resumed_step(cut: PowerCut) -> int | None:
    """Returns the step that a run went on from; None if it was cut before reporting it."""
    if cut.resumed is not None:
        return cut.resumed.step
    return 0 if cut.kept_step else None


def _wrong_checksums(
    power_cuts: Sequence[PowerCut], run: Mapping[str, Any], reference: Mapping[str, Any]
) -> Iterator[str]:
    """Yields checksums, after cuts and at the end, that differ from those of a run without cuts."""
    if not power_cuts:
        return
    checksums, expected = run["checksums"], reference["checksums"]
    first, last = run["first_step"], run["first_step"] + len(run["losses"])
    restored = [
        (number, cut.resumed.step, cut.resumed.sha256)
        for number, cut in enumerate(power_cuts)
        if cut.resumed is not None
    ]
    if first:
        restored.append((len(power_cuts), first, checksums.get(str(first))))
    for number, step, checksum in restored:
        if str(step) not in expected:
            yield (
                f"after power cut {number} the workload went on from step {step}, of which the "
                "reference has no checksum"
            )
        elif checksum != expected[str(step)]:
            yield (
                f"after power cut {number} the checkpoint of step {step} was read back with "
                f"checksum {checksum}; the reference has {expected[str(step)]} there"
            )
    if str(last) not in checksums or checksums[str(last)] != expected.get(str(last)):
        yield (
            f"after the last step, {last}, the checksum is {checksums.get(str(last))}; the "
            f"reference's is {expected.get(str(last))}"
        )


def _device_of(placement: RowPlacement, facts: Mapping[str, Any]) -> str | None:
    """Returns the device of the files that rows must be in; None if it isn't known."""
    if placement.file_under not in (PMEM, SSD):
        return None
    device: str = facts["mount" if placement.file_under == PMEM else "ssd"]["device_number"]
    return device


def _missing_traffic(
    placements: Sequence[RowPlacement], facts: Mapping[str, Any], facts_after: Mapping[str, Any]
) -> Iterator[str]:
    """Yields bytes missing from the kernel's traffic with the disk that rows must be on."""
    for placement in placements:
        for name, least, verb in (
            ("read_bytes", placement.read_bytes, "read from"),
            ("written_bytes", placement.written_bytes, "written to"),
        ):
            if least is None:
                continue
            moved = _traffic(facts_after, name) - _traffic(facts, name)
            if moved < least:
                yield (
                    f"{moved} bytes were {verb} {facts['ssd']['device']} during the run; rows "
                    f"that lie there need {least} at least"
                )


def _traffic(facts: Mapping[str, Any], name: str) -> int:
    """Returns a counter of the topology's disk. Raises `MissingRequirementError` if it has none."""
    if name not in facts["ssd"]:
        raise MissingRequirementError(
            f"a disk for the topology's `ssd`: the folder is on {facts['ssd']['device']}, of which "
            f"the kernel doesn't tell the {name}",
            "set TMPDIR to a folder on a disk",
        )
    return int(facts["ssd"][name])


def _misplaced_tables(
    placements: Sequence[RowPlacement],
    devices: Sequence[str | None],
    tables: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    if not tables:
        yield "the run had no tables"
    several = len(placements) > 1
    problems = [
        f"table {table['name']}: exported {table['exported_rows']} rows, and its tiers say that "
        f"they have {rows_in_tiers}"
        for table in tables
        if table["exported_rows"] != (rows_in_tiers := sum(tier["rows"] for tier in table["tiers"]))
    ]
    problems += [
        f"table {table['name']}, tier {tier['name']}: {problem}"
        for table in tables
        for placement, device, tier in zip(placements, devices, table["tiers"], strict=True)
        if tier["rows"] or not several  # a small table leaves lower tiers empty
        for problem in _misplacements(placement, device, tier)
    ]
    yield from _rows_missing_everywhere(tables)
    yield from problems[:_SHOWN_TABLES]
    if len(problems) > _SHOWN_TABLES:
        yield f"... and {len(problems) - _SHOWN_TABLES} more of that kind"


def _misplacements(
    placement: RowPlacement, device: str | None, tier: Mapping[str, Any]
) -> Iterator[str]:
    if tier["rows"] == 0:
        yield "has no rows, so nothing can be said of where they lie"
        return
    if isinstance(placement.nodes, tuple):
        pages = {int(node): count for node, count in tier["nodes"].items()}
        allowed = ", ".join(map(str, placement.nodes))
        if not pages:
            yield f"move_pages knows no page of it; they must lie on node {allowed}"
        for node, count in pages.items():
            if node not in placement.nodes:
                yield f"{count} pages lie on node {node}; they must lie on node {allowed}"
    if placement.file_under is not None:
        folder = placement.file_under.rstrip("/") + "/"
        if tier["file"] is None or not tier["file"].startswith(folder):
            yield f"is mapped from {tier['file'] or 'no file'}; it must be a file under {folder}"
        others = set(tier["devices"]) - {device}
        if device is not None and (others or device not in tier["devices"]):
            yield (
                f"has its files on device {', '.join(sorted(others)) or 'none'}; they must be on "
                f"{device}, where {folder} is"
            )
    if placement.gpu is not None and tier.get("gpu") != placement.gpu:
        yield f"lies in no memory of a GPU that was found; it must be that of {placement.gpu}"
    if placement.is_pmem is not None and tier["is_pmem"] is not placement.is_pmem:
        yield f"is_pmem is {tier['is_pmem']}; it must be {placement.is_pmem}"
    yield from _rows_missing_in_tier(tier)


def _rows_missing_in_tier(tier: Mapping[str, Any]) -> Iterator[str]:
    """Yields rows that another process did not find where the engine says that they are."""
    place = tier["file"] or "its memory"
    holds = sum(tier["devices"].values()) or sum(tier["nodes"].values()) * mmap.PAGESIZE
    if holds < tier["bytes"]:
        yield f"{place} holds {holds} bytes, too few for rows of {tier['bytes']}"
    sought, found = tier["sought"], tier["found"]
    if found < sought and not _writes_through_buffers(tier):
        yield f"another process found {found} of {sought} rows in {place}"
    read_changed = tier.get("read_changed")
    if read_changed is not None and read_changed < sought:
        yield (
            f"a bit of {sought} rows was changed in {place}, and the table read {read_changed} of "
            "them so: it keeps rows elsewhere"
        )


def _rows_missing_everywhere(tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields faults of all tables together: one table may have no sampled row, or few."""
    tiers = [tier for table in tables for tier in table["tiers"] if tier["rows"]]
    for name in dict.fromkeys(tier["name"] for tier in tiers):
        of_name = [tier for tier in tiers if tier["name"] == name]
        sought = sum(tier["sought"] for tier in of_name)
        found = sum(tier["found"] for tier in of_name)
        holds = min((sum(tier["devices"].values()) for tier in of_name), default=0)
        total = sum(tier["bytes"] for tier in of_name)
        if of_name[0].get("gpu") is not None and holds < total:  # shared by all tables
            yield f"tier {name}: the GPU holds {holds} bytes, too few for rows of {total}"
        if not sought:
            yield f"tier {name}: none of its rows could be looked for by another process"
        elif _writes_through_buffers(of_name[0]) and found < _MIN_WRITTEN * sought:
            folders = ", ".join(sorted({str(tier["file"]) for tier in of_name})[:_SHOWN_TABLES])
            yield f"tier {name}: another process found {found} of {sought} rows in {folders}"


def _writes_through_buffers(tier: Mapping[str, Any]) -> bool:
    return tier["name"] in {kind.value for kind in SSD_KINDS}


def _tail(text: str, max_lines: int = _SHOWN_OUTPUT_LINES) -> str:
    lines = text.strip().splitlines()
    shown = lines[-max_lines:]
    return "\n".join(["..."] * (len(shown) < len(lines)) + shown) or "(it wrote nothing)"
