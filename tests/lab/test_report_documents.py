"""What is read from a folder of results, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_results import CHECKPOINTS, FIDELITY, PLAN, RUN, write_results

from pmemlab.errors import LabError
from pmemlab.report.documents import ResultsError, read_folder
from pmemlab.scenarios.metrics import ResultsFile


def changed(document: Mapping[str, Any], items: str, **fields: Any) -> dict[str, Any]:
    """The document with other fields in its first item."""
    first, *others = document[items]
    return {**document, items: [{**first, **fields}, *others]}


def refused(folder: Path, document: object) -> str:
    (folder / "some.json").write_text(json.dumps(document))
    with pytest.raises(ResultsError) as caught:
        read_folder(folder)
    assert isinstance(caught.value, LabError)
    message = str(caught.value)
    assert message.startswith(f"{folder}/some.json:")
    return message


def test_everything_that_the_lab_s_commands_leave_is_read(tmp_path: Path) -> None:
    results = read_folder(write_results(tmp_path))
    assert {row.kind for row in results.rows} == {"measured", "modelled", "functional-only"}
    assert [choice.storage_type for choice in results.plans[0].choices] == [
        *("DRAM_PMEM", "DRAM", "DRAM_SSDHASH")
    ]
    assert [check.holds for check in results.fidelity] == [True, False]
    assert [arm.kind for arm in results.checkpoints] == [
        *("measured", "modelled", "functional-only")
    ]
    assert results.left_out == []


def test_of_what_is_there_twice_the_newest_counts_with_nothing_of_the_older(tmp_path: Path) -> None:
    step = replace(RUN, name="step_ms.compute", value=2.0)
    for name, metrics in (
        ("20260101T000000Z-a", [replace(RUN, value=1.0), step]),
        ("20260102T000000Z-b", [replace(RUN, value=2.0)]),
    ):
        lines = "".join(json.dumps(metric.as_json()) + "\n" for metric in metrics)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (row,) = read_folder(tmp_path).rows
    assert row.samples_per_s == 2.0
    assert row.step_ms == {}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"nowhere: isn't there; `make scenarios` makes"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="file: is no folder"):
        read_folder(tmp_path / "file")


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ResultsError, match=r"has no results, which are \*\.jsonl or \*\.json"):
        read_folder(tmp_path)


def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as results:
        results.append([RUN])
    with results.path.open("a") as file:
        file.write('{"name": "auc", "val')
    with pytest.raises(ResultsError, match=rf"{results.path.name}:2: not a metric"):
        read_folder(tmp_path)


def test_lines_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ResultsError, match=r"run\.jsonl:1: not a metric"):
        read_folder(tmp_path)


def test_a_file_that_is_no_json_is_named_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"document": "plan",\n oops}')
    with pytest.raises(ResultsError, match=r"plan\.json:2: not JSON"):
        read_folder(tmp_path)


def test_a_document_of_another_kind_is_left_out_and_said_so(tmp_path: Path) -> None:
    write_results(tmp_path)
    (tmp_path / "pytest.json").write_text('{"tests": 3}')
    assert read_folder(tmp_path).left_out == ["pytest.json"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "the file: must be a mapping of fields"),
        ({"document": "plan"}, "choices: is missing"),
        ({"document": "plan", "choices": {}}, "choices: must be a list of mappings"),
        (changed(PLAN, "choices", storage_type=None), "choices[0].storage_type: is missing"),
        (changed(PLAN, "choices", devices="optane"), "choices[0].devices: must be a list of names"),
        (changed(PLAN, "choices", devices=[3]), "choices[0].devices: must be a list of names"),
        (changed(PLAN, "choices", usd_per_month=-1), "usd_per_month: must be a number above 0"),
        (changed(PLAN, "choices", lookups_per_s="5"), "lookups_per_s: must be a number above 0"),
        (changed(PLAN, "choices", hit_rates=[None]), "hit_rates: must be a list of numbers"),
        (changed(PLAN, "choices", step_ms=float("nan")), "step_ms: must be a number or null"),
        (changed(FIDELITY, "checks", name=3), "checks[0].name: must be text"),
        (changed(FIDELITY, "checks", predicted="9"), "predicted: must be a number or null"),
        (changed(FIDELITY, "checks", note=3), "checks[0].note: must be text"),
        ({"document": "fidelity"}, "checks: is missing"),
        (changed(CHECKPOINTS, "arms", kind="guessed"), "arms[0].kind: must be one of measured"),
        (changed(CHECKPOINTS, "arms", model=None), "arms[0].model: is missing"),
    ],
)
def test_a_malformed_document_is_named_by_file_and_field(
    tmp_path: Path, document: object, problem: str
) -> None:
    assert problem in refused(tmp_path, document)


def test_fields_that_nobody_here_knows_are_left_alone(tmp_path: Path) -> None:
    document = changed(PLAN, "choices", colour="red")
    (tmp_path / "plan.json").write_text(json.dumps({**document, "version": 7}))
    assert len(read_folder(tmp_path).plans[0].choices) == 3


def test_an_error_is_relative_and_unknown_where_a_number_is(tmp_path: Path) -> None:
    document = changed(FIDELITY, "checks", predicted=None)
    (tmp_path / "fidelity.json").write_text(json.dumps(document))
    unknown, known = read_folder(tmp_path).fidelity
    assert (unknown.error, unknown.holds) == (None, None)
    assert known.error == pytest.approx(1.31 / 1.71 - 1)
