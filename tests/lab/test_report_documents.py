"""Reading a folder of results, and the errors for bad files in it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_results import CACHE_SIZES, CHECKPOINTS, FIDELITY, PLAN, RUN, write_results

from pmemlab.errors import LabError
from pmemlab.report.documents import ResultsError, read_folder
from pmemlab.scenarios.metrics import ResultsFile


def changed(document: Mapping[str, Any], items: str, **fields: Any) -> dict[str, Any]:
    """Returns the document with changed fields in the first of its items."""
    first, *others = document[items]
    return {**document, items: [{**first, **fields}, *others]}


def refused(folder: Path, document: object) -> str:
    """Returns the error for a folder with this document."""
    (folder / "some.json").write_text(json.dumps(document))
    with pytest.raises(ResultsError) as caught:
        read_folder(folder)
    assert isinstance(caught.value, LabError)
    message = str(caught.value)
    assert message.startswith(f"{folder}/some.json:")
    return message


def test_every_result_that_the_lab_s_commands_write_is_read(tmp_path: Path) -> None:
    results = read_folder(write_results(tmp_path))
    assert {row.kind for row in results.rows} == {"measured", "modelled", "functional-only"}
    (plan,) = results.plans
    assert [choice.usd_per_month for choice in plan.choices] == [4100.0, 5000.0, 9200.0, None]
    assert plan.choices[0].devices == ("ddr4-2666-x6", "optane-100-x6")
    rows = [row for section in results.fidelity for row in section.rows]
    assert [row.reached for row in rows] == [True, None, False]
    assert [arm.kind for arm in results.checkpoints] == [
        *("measured", "modelled", "functional-only")
    ]
    (sweep,) = results.cache_sweeps
    assert [tier.share for tier in sweep.first_tiers] == [0.005, 0.3]
    assert results.left_out == []


def test_the_newest_of_two_results_replaces_the_older_completely(tmp_path: Path) -> None:
    step = replace(RUN, name="step_ms.compute", value=2.0)
    newer = replace(RUN, value=2.0, time="2026-01-02T00:00:00+00:00")
    for name, metrics in (
        ("brought-from-elsewhere", [replace(RUN, value=1.0), step]),
        ("20260102T000000Z-b", [newer]),
    ):
        lines = "".join(json.dumps(metric.as_json()) + "\n" for metric in metrics)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (row,) = read_folder(tmp_path).rows
    assert row.samples_per_s == 2.0
    assert row.step_ms == {}


def test_a_scenario_s_results_on_two_topologies_are_separate(tmp_path: Path) -> None:
    both = [RUN, replace(RUN, topology="mine", value=7.0)]
    lines = "".join(json.dumps(metric.as_json()) + "\n" for metric in both)
    (tmp_path / "run.jsonl").write_text(lines)
    rates = {row.topology: row.samples_per_s for row in read_folder(tmp_path).rows}
    assert rates == {RUN.topology: RUN.value, "mine": 7.0}


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
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
        file.write('\n{"name": "auc", "val\n')
    with pytest.raises(ResultsError, match=rf"{results.path.name}:3: not a metric"):
        read_folder(tmp_path)


def test_a_truncated_last_line_is_left_out_and_reported(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as results:
        results.append([RUN])
    with results.path.open("a") as file:
        file.write('{"name": "auc", "val')
    read = read_folder(tmp_path)
    assert len(read.rows) == 1
    assert read.left_out == [f"{results.path.name}:2"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("value", float("nan")), ("value", float("inf")), ("value", "1"), ("value", 1e31)],
        *[("value", True)],
        *[("name", 7), ("name", None), ("name", {}), ("name", "")],
        *[("storage_type", 7), ("scenario", []), ("topology", None), ("machine", {})],
        *[("accelerator", []), ("facts", 7), ("commit", {}), ("time", 2026)],
        *[("devices", [1]), ("devices", "nvme"), ("not_judged", [1])],
    ],
)
def test_a_metric_s_bad_field_is_named_with_file_and_line(
    tmp_path: Path, field: str, value: object
) -> None:
    good = RUN.as_json()
    lines = [json.dumps(good), json.dumps({**good, field: value})]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    with pytest.raises(ResultsError, match=rf"run\.jsonl:2: {field}(\[0\])?: (must be|is missing)"):
        read_folder(tmp_path)


def test_unproved_facts_must_be_a_list(tmp_path: Path) -> None:
    facts = {**RUN.facts, "unproved": "abc"}
    (tmp_path / "run.jsonl").write_text(json.dumps(replace(RUN, facts=facts).as_json()))
    with pytest.raises(ResultsError, match=r"run.jsonl:1: facts.unproved: must be a list of texts"):
        read_folder(tmp_path)


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    line = json.dumps(replace(RUN, scenario="\ud800").as_json())
    (tmp_path / "run.jsonl").write_text(f"{line}\n")
    with pytest.raises(ResultsError, match=r"run.jsonl:1: not a metric: has half a character"):
        read_folder(tmp_path)
    (tmp_path / "run.jsonl").unlink()
    assert "has half a character" in refused(tmp_path, {"plans": [], "workload": {"\udfff": 1}})


def test_numbers_that_are_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(f'{{"plans": {"9" * 5000}}}')
    with pytest.raises(ResultsError, match=r"plan.json: not JSON: Exceeds the limit"):
        read_folder(tmp_path)


def test_a_metric_without_a_value_is_read(tmp_path: Path) -> None:
    for value in (None, math.nan, math.inf):
        line = json.dumps(replace(RUN, name="auc", value=value).as_json())
        (tmp_path / "run.jsonl").write_text(f"{json.dumps(RUN.as_json())}\n{line}\n")
        (row,) = read_folder(tmp_path).rows
        assert row.auc is None


def test_lines_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ResultsError, match=r"run\.jsonl:1: not a metric"):
        read_folder(tmp_path)


def test_a_file_that_is_not_json_is_named_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"document": "plan",\n oops}')
    with pytest.raises(ResultsError, match=r"plan\.json:2: not JSON"):
        read_folder(tmp_path)


def test_a_document_left_empty_by_a_full_disk_is_left_out_and_reported(tmp_path: Path) -> None:
    write_results(tmp_path)
    (tmp_path / "other.json").touch()
    read = read_folder(tmp_path)
    assert read.left_out == ["other.json"]
    assert read.rows


def test_a_document_of_an_unknown_kind_is_left_out_and_reported(tmp_path: Path) -> None:
    write_results(tmp_path)
    (tmp_path / "pytest.json").write_text('{"tests": 3}')
    assert read_folder(tmp_path).left_out == ["pytest.json"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "the file: must be a mapping of fields"),
        ({"plans": {}}, "plans: must be a list of mappings"),
        ({"sections": [3]}, "sections[0]: must be a mapping"),
        ({**PLAN, "workload": []}, "workload: must be a mapping"),
        (changed(PLAN, "plans", storage_type=None), "plans[0].storage_type: is missing"),
        (changed(PLAN, "plans", tiers=[]), "plans[0].tiers: must be a list of one mapping or more"),
        (changed(PLAN, "plans", tiers=[{"device": 3}]), "plans[0].tiers[0].device: must be text"),
        (changed(PLAN, "plans", lookups_per_s="5"), "lookups_per_s: must be a number above 0"),
        (changed(PLAN, "plans", lookups_per_s=0), "lookups_per_s: must be a number above 0"),
        (changed(PLAN, "plans", lookups_per_s=1e31), "must be a number above 0, 1e+30 at most"),
        (changed(PLAN, "plans", machines=1e31), "a number above 0, 1e+30 at most"),
        (changed(CHECKPOINTS, "arms", stall_seconds=1e31), "stall_seconds: must be a number of"),
        (changed(CACHE_SIZES, "first_tiers", hit_rate=1e31), "at least 0, 1e+30 at most"),
        (changed(PLAN, "plans", step_ms=float("nan")), "step_ms: must be a number of at least 0"),
        (changed(PLAN, "plans", usd_per_month="1"), "usd_per_month: must be a number of"),
        (changed(PLAN, "plans", usd_per_month=-5), "usd_per_month: must be a number of at least"),
        (changed(PLAN, "plans", usd_per_million_lookups=-5.0), "usd_per_million_lookups: must be"),
        (changed(PLAN, "plans", machines=-3), "machines: must be a number above 0"),
        (changed(CHECKPOINTS, "arms", save_bytes_per_s=-1), "save_bytes_per_s: must be a number"),
        (changed(FIDELITY, "sections", title=3), "sections[0].title: must be text"),
        (changed(FIDELITY, "sections", rows=None), "sections[0].rows: is missing"),
        (changed(FIDELITY, "sections", rows=[{"name": "x"}]), "rows[0].published: is missing"),
        (
            changed(FIDELITY, "sections", rows=[{"name": "x", "published": 0}]),
            "sections[0].rows[0].published: must be a number above 0",
        ),
        (
            changed(FIDELITY, "sections", rows=[{"name": "x", "published": 1, "predicted": -1}]),
            "sections[0].rows[0].predicted: must be a number of at least 0",
        ),
        (changed(FIDELITY, "sections", remarks="none"), "remarks: must be a list of texts"),
        (changed(CHECKPOINTS, "arms", kind="guessed"), "arms[0].kind: must be one of measured"),
        (changed(CHECKPOINTS, "arms", model=None), "arms[0].model: is missing"),
        (changed(CHECKPOINTS, "arms", stall_seconds="1"), "stall_seconds: must be a number"),
        (changed(CACHE_SIZES, "first_tiers", share=0), "first_tiers[0].share: must be a number"),
        ({**CACHE_SIZES, "pmem": None}, "pmem: is missing"),
    ],
)
def test_a_malformed_document_is_named_by_file_and_field(
    tmp_path: Path, document: object, problem: str
) -> None:
    assert problem in refused(tmp_path, document)


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    document = changed(PLAN, "plans", colour="red")
    (tmp_path / "plan.json").write_text(json.dumps({**document, "version": 7}))
    assert len(read_folder(tmp_path).plans[0].choices) == 4


def test_a_later_fidelity_document_replaces_only_its_own_sections(tmp_path: Path) -> None:
    newer = changed(FIDELITY, "sections", rows=[])
    for name, document in (("a", FIDELITY), ("b", {"sections": newer["sections"][:1]})):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    assert [len(section.rows) for section in read_folder(tmp_path).fidelity] == [0, 1]


def test_the_newest_of_two_documents_counts_whatever_its_name(tmp_path: Path) -> None:
    older, newer = tmp_path / "z.json", tmp_path / "a.json"
    for day, file in enumerate((older, newer), start=1):
        rows = changed(
            FIDELITY, "sections", rows=[{"name": f"{day}", "published": 1, "predicted": 1}]
        )
        file.write_text(json.dumps(rows))
        os.utime(file, (day, day))
    assert [row.name for row in read_folder(tmp_path).fidelity[0].rows] == ["2"]
    # The document's own time counts, not the file's, since the file may be a copy.
    for file, time, rate in ((older, "2026-01-01", 1.0), (newer, "2026-01-02", 2.0)):
        document = changed(CHECKPOINTS, "arms", save_bytes_per_s=rate)
        file.write_text(json.dumps({**document, "time": f"{time}T00:00:00+00:00"}))
    os.utime(newer, (1, 1))
    assert read_folder(tmp_path).checkpoints[0].save_bytes_per_s == 2.0


def test_a_document_s_time_may_end_in_z(tmp_path: Path) -> None:
    for name, time, rate in (("z", "01T00:00:00Z", 1.0), ("a", "01T00:30:00+01:00", 2.0)):
        document = changed(CHECKPOINTS, "arms", save_bytes_per_s=rate)
        text = json.dumps({**document, "time": f"2026-01-{time}"})
        (tmp_path / f"{name}.json").write_text(text)
        os.utime(tmp_path / f"{name}.json", (1, 1) if name == "z" else None)
    assert read_folder(tmp_path).checkpoints[0].save_bytes_per_s == 1.0


@pytest.mark.parametrize("document", [PLAN, FIDELITY, CHECKPOINTS, CACHE_SIZES])
@pytest.mark.parametrize("time", ["yesterday", "2026-13-01", "", 2026, ["2026-01-01"]])
def test_an_invalid_time_is_refused(
    tmp_path: Path, document: Mapping[str, Any], time: object
) -> None:
    assert ": time: must be an ISO time" in refused(tmp_path, {**document, "time": time})


def test_a_file_that_is_not_a_result_may_have_any_time(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"time": "yesterday"}')
    assert read_folder(tmp_path).left_out == ["other.json"]


def test_a_prediction_needs_only_a_title_a_name_and_two_figures(tmp_path: Path) -> None:
    row = {"name": "x", "published": 100.0, "predicted": 115.1}
    document = {"sections": [{"title": "t", "rows": [row]}]}
    (tmp_path / "fidelity.json").write_text(json.dumps(document))
    (section,) = read_folder(tmp_path).fidelity
    assert (section.intro, section.remarks) == ("", ())
    assert (section.rows[0].unit, section.rows[0].reached) == ("", None)
