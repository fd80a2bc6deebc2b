"""The command that trains tables without a model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import document_of, refusal_of, skip_without

from pmemlab.workloads import tables
from pmemlab.workloads.keeping import parse_resumed, parse_saved_step

SMALL = [
    *("--tables", "2", "--rows", "3000", "--steps", "12", "--batch-size", "512"),
    *("--embedding-dim", "8", "--cold-lookups", "300"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return document_of(tables.main, capsys, *SMALL, *arguments)


def on_disk(path: Path, kind: str = "DRAM_SSDHASH") -> list[str]:
    return ["--storage-type", kind, "--storage-path", str(path), "--storage-size", "16384"]


@pytest.mark.parametrize("strategy", ["LFU", "LRU"])
@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_rows_on_a_disk_have_the_bits_of_dram(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, strategy: str
) -> None:
    if kind == "DRAM_LEVELDB":
        skip_without("libleveldb.so.1d", "libleveldb1d")
    document = run(
        capsys, *on_disk(tmp_path, kind), "--reference", "DRAM", "--cache-strategy", strategy
    )
    trained, reference = document["run"], document["reference"]
    assert trained["losses"] == reference["losses"]
    assert trained["state_sha256"] == reference["state_sha256"]
    assert trained["cold"] == {"rows": 600, "wrong": 0}
    for table in trained["tables"]:
        in_memory, on_file = table["tiers"]
        assert in_memory["rows"] + on_file["rows"] == 3000
        assert in_memory["nodes"]
        assert list(on_file["devices"]) == [device_of(tmp_path)]
        assert table["stats"]["promotions"]
        assert table["stats"]["demotions"]


def test_rows_learn_the_values_of_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    losses = [float.fromhex(loss) for loss in run(capsys)["run"]["losses"]]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("filter_option", ["counter:3", "cbf:3"])
def test_keys_are_admitted_as_a_plain_count_says(
    capsys: pytest.CaptureFixture[str], filter_option: str
) -> None:
    trained = run(capsys, "--filter", filter_option)["run"]
    assert trained["plain"] == {"wrong_keys": 0, "wrong_frequencies": 0}
    assert all(0 < table["tiers"][0]["rows"] < 3000 for table in trained["tables"])


def test_a_run_resumes_from_a_save(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    uninterrupted = run(capsys)["run"]
    saved = str(tmp_path / "saved")
    half = run(capsys, "--save", saved, "--stop-after", "9")["run"]
    assert half["steps"] == 9
    resumed = run(capsys, *on_disk(tmp_path), "--restore", saved)["run"]
    assert resumed["first_step"] == 9
    assert half["losses"] + resumed["losses"] == uninterrupted["losses"]
    assert resumed["state_sha256"] == uninterrupted["state_sha256"]


def test_a_save_that_has_all_steps_already_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a step to train there is neither a loss nor a rate."""
    saved, kept = tmp_path / "saved", tmp_path / "kept"
    run(capsys, "--save", str(saved))
    complaint = "holds a checkpoint of step 18, and only 18 are asked for"
    assert f"{saved}: {complaint}" in refusal_of(
        tables.main, capsys, *SMALL, "--restore", str(saved)
    )
    run(capsys, "--kept-in", str(kept), "--keep-every", "5")
    shown = refusal_of(tables.main, capsys, *SMALL, "--kept-in", str(kept), "--stop-after", "9")
    assert f"{kept}: holds a checkpoint of step 15, and only 9 are asked for" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--filter", "often:3"], "often:3 is neither counter:N nor cbf:N"),
        (["--rows", "100"], "100 is below 2000"),
        (["--tables", "0"], "0 is not above 0"),
        (["--rows", "99999999999999999999"], "99999999999999999999 is above 281474976710656"),
        ([*SMALL, "--batch-size", str(1 << 48)], "tables: not enough memory: "),
        (["--storage-type", "TAPE"], "storage type 'TAPE' is unknown"),
        (["--restore", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert complaint in refusal_of(tables.main, capsys, *arguments)


def device_of(path: Path) -> str:
    import os

    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_a_run_resumes_from_an_earlier_runs_saves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    uninterrupted = run(capsys)["run"]
    keeping = ["--kept-in", str(tmp_path / "kept"), "--keep-every", "5"]
    assert tables.main([*SMALL, "--stop-after", "13", *keeping]) == 0
    assert [step for step in map(parse_saved_step, stderr_lines(capsys)) if step] == [5, 10]
    assert tables.main([*SMALL, "--json", *keeping]) == 0
    captured = capsys.readouterr()
    assert [line.step for line in map(parse_resumed, captured.err.splitlines()) if line] == [10]
    resumed = json.loads(captured.out)["run"]
    assert resumed["first_step"] == 10
    assert resumed["losses"] == uninterrupted["losses"][10:]
    assert resumed["state_sha256"] == uninterrupted["state_sha256"]


def test_a_run_reports_the_number_of_saves_in_its_timed_steps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without_saves = run(capsys)["run"]
    assert without_saves["saves"] == 0
    timed = without_saves["steps"] - 1  # the first step is the warm-up
    keeping = ["--kept-in", str(tmp_path / "kept"), "--keep-every", "1", "--json"]
    assert tables.main([*SMALL, *keeping]) == 0
    captured = capsys.readouterr()
    saved_steps = [step for step in map(parse_saved_step, captured.err.splitlines()) if step]
    saves = json.loads(captured.out)["run"]["saves"]
    assert 0 < saves < len(saved_steps) <= timed  # saves before the skewed batches aren't timed


def test_a_damaged_save_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    keeping = ["--kept-in", str(tmp_path / "kept"), "--keep-every", "5"]
    assert tables.main([*SMALL, "--stop-after", "7", *keeping]) == 0
    (save,) = (tmp_path / "kept").glob("save-*")
    next(path for path in save.rglob("*") if path.is_file()).write_bytes(b"")
    assert tables.main([*SMALL, *keeping]) == 2
    assert "save-" in capsys.readouterr().err


def test_two_saves_to_resume_from_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    both_options = ["--kept-in", "a", "--restore", "b"]
    assert "--kept-in" in refusal_of(tables.main, capsys, *SMALL, *both_options)


def stderr_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_predictions_are_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main([*SMALL, "--predict", "ddr4-2666-x6", "--rates-only"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"predicted +[\d,]+ ids/s on ddr4-2666-x6\n", printed), printed


def test_a_rates_only_run_checks_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    document = run(capsys, "--predict", "ddr4-2666-x6", "--rates-only")
    assert document["run"]["predictions"][0]["samples_per_s"] > 0
    assert document["run"]["tables"] == []
    assert document["run"]["cold"] is None
