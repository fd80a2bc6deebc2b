"""Metrics, and the files that store them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pmemlab.scenarios.metrics import Metric, ResultsFile, commit_of, read_results

METRIC = Metric(
    name="samples_per_s",
    value=12.5,
    unit="samples/s",
    kind="functional-only",
    scenario="fsdax",
    storage_type="PMEM_LIBPMEM",
    topology="fsdax",
    machine="guest",
    accelerator="tcg",
    facts={"mount": {"dax": True}},
    commit="0123456789ab",
    time="2026-01-01T00:00:00+00:00",
)


def test_written_metrics_are_read_back(tmp_path: Path) -> None:
    other = replace(METRIC, name="auc", value=None, not_judged=("where rows lie",))
    with ResultsFile(tmp_path / "results") as results:
        results.append([METRIC])
        results.append([other])
        assert list(read_results(results.path)) == [METRIC, other]  # readable while still open


def test_two_runs_have_two_files(tmp_path: Path) -> None:
    for _ in range(2):
        with ResultsFile(tmp_path) as results:
            results.append([METRIC])
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_a_run_without_results_leaves_no_file(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "results"):
        pass
    assert not (tmp_path / "results").exists()


def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(METRIC.as_json()) + '\n{"name": "auc"')
    with pytest.raises(ValueError, match=r"run\.jsonl:2: not a metric"):
        list(read_results(path))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind is 'guessed'; it must be one of measured"):
        replace(METRIC, kind="guessed")  # type: ignore[arg-type]


def test_a_modelled_number_names_its_devices() -> None:
    with pytest.raises(ValueError, match="devices of samples_per_s names none"):
        replace(METRIC, kind="modelled")
    with pytest.raises(ValueError, match="devices of samples_per_s names none"):
        replace(METRIC, kind="modelled", devices=(None, None))
    assert replace(METRIC, kind="modelled", devices=(None, "nvme-p4510")).devices[1] == "nvme-p4510"


def test_a_prediction_is_modelled() -> None:
    with pytest.raises(ValueError, match="kind of modelled_samples_per_s is 'functional-only'"):
        replace(METRIC, name="modelled_samples_per_s")


def test_devices_are_read_back_and_may_be_missing_in_older_files(tmp_path: Path) -> None:
    modelled = replace(METRIC, kind="modelled", devices=("ddr5-snc", None))
    with ResultsFile(tmp_path) as results:
        results.append([modelled])
        assert list(read_results(results.path)) == [modelled]
    older = METRIC.as_json()
    del older["devices"]
    path = tmp_path / "older.jsonl"
    path.write_text(json.dumps(older) + "\n")
    assert list(read_results(path)) == [METRIC]


@pytest.mark.parametrize("line", ["[1]", '"auc"', '{"devices": 3}', '{"devices": null}'])
def test_a_line_that_is_not_a_metric_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"run\.jsonl:1: not a metric"):
        list(read_results(path))


def test_the_commit_says_if_the_tree_has_changes(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == "unknown"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "First"]):
        subprocess.run([*git, *command], check=True)
    clean = commit_of(tmp_path)
    assert len(clean) == 12
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == f"{clean}+changes"
