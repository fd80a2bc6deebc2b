"""The command `python -m benchmarks.criteo_deepctr`."""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from commands import refusal_of
from deepctr_runs import SHARED_DATA

from benchmarks.criteo_deepctr import command
from benchmarks.criteo_deepctr.command import main
from benchmarks.criteo_deepctr.training import State
from pmemlab.workloads.criteo_file import write_raw
from pmemlab.workloads.synthetic import SyntheticSource

SMALL = [
    *("--hidden_units", "16", "--batch_size", "64", "--keys_per_column", "2000"),
    *("--held_out_rows", "200"),
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tsv"
    write_raw(path, SyntheticSource(1, 2000), 300)
    return path


complaint = partial(refusal_of, main)


def test_a_file_is_trained_on_and_the_result_printed(
    capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    assert main([*SMALL, "--data", str(rows), "--epochs", "2", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    (result,) = document["results"]
    assert document["backend"] in ("torch", "tensorflow")
    assert (result["model"], result["embedding_dim"], result["workers"]) == ("DeepFM", 9, 1)
    assert (result["rows"], result["steps"], result["held_out_rows"]) == (540, 10, 30)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| DeepFM | 9 | DRAM, here | 1 |")
    assert f"| {result['samples_per_s']:,.0f} |" in line
    assert f"| {result['auc']:.4f} |" in line


@pytest.mark.long
def test_the_option_all_prints_a_table_of_models_and_dims(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--cin_maps", "3", "--generated", "64", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        [f"| {model}", dim] for model in ("WDL", "DeepFM", "xDeepFM") for dim in ("9", "64")
    ]


@pytest.mark.parametrize("name", ["criteo_raw_200.csv", "criteo_encoded_100.csv"])
def test_criteos_own_rows_are_trained_on(capsys: pytest.CaptureFixture[str], name: str) -> None:
    if not (SHARED_DATA / name).exists():
        pytest.skip(f"there is no {SHARED_DATA / name}")
    assert main([*SMALL, "--data", str(SHARED_DATA / name), "--model", "WDL"]) == 0
    assert "| WDL | 9 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data is missing"),
        (["--data", "/nowhere/rows"], "--data: /nowhere/rows: can't be read"),
        (["--generated", "0"], "--generated: 0 is not above 0"),
        (["--generated", "9", "--data", "x"], "--data and --generated: give one"),
        (["--generated", "9", "--model", "FNN"], "--model: invalid choice: 'FNN'"),
        (["--generated", "9", "--optimizer", "SGD"], "--optimizer: invalid choice"),
        (["--generated", "9", "--embedding_dim", "0"], "--embedding_dim: 0 is not above 0"),
        (
            ["--generated", "9", "--learning_rate", "nan"],
            "--learning_rate: nan is no finite",
        ),
        (["--generated", "9", "--shards", "2"], "--shards is of use with --server only"),
        (
            ["--generated", "9", "--server", "--master_endpoint", "here"],
            "must be IP:PORT, got 'here'",
        ),
        (
            ["--generated", "9", "--server", "--master_endpoint", "127.0.0.1:9"],
            "--master_endpoint: nothing can be reached at 127.0.0.1:9",
        ),
        (["--generated", "9", "--workers", "2"], "--workers is of use with --server only"),
        (
            ["--generated", "9", "--server", "--workers", "1", "2"],
            "--workers: several numbers are for --all only",
        ),
        (
            ["--generated", "9", "--server", "--workers", "2", "--checkpoint", "/tmp"],
            "--checkpoint /tmp has something already; give --load /tmp to go on",
        ),
        (
            ["--generated", "9", "--server", "--workers", "2", "--load", "/tmp"],
            "--load /tmp: with --workers give --checkpoint /tmp too",
        ),
        (["--generated", "9", "--all", "--model", "WDL"], "--model is of one model"),
        (["--generated", "9", "--save", "model.h5"], "--save model.h5: the name must end with"),
        (["--generated", "9", "--json", "/nowhere/x"], "--json /nowhere/x: there is no folder"),
        (["--generated", "9", "--checkpoint", "/dev/null"], "--checkpoint /dev/null: is a file"),
        (["--generated", "9", "--json", "/tmp"], "--json /tmp: is a folder; give a file"),
        (["--generated", "9", "--seed", "-5"], "--seed: -5 is not between 0 and 4294967295"),
        (["--generated", "9", "--seed", "9" * 20], "9 is not between 0 and 4294967295"),
        (["--generated", "9", "--load", "/nowhere"], "/nowhere has no checkpoint"),
        (["--generated", "9", "--storage_type", "TAPE"], "storage type 'TAPE' is unknown"),
        (["--generated", "9", "--keys_per_column", "5"], "keys_per_column is 5"),
    ],
)
def test_bad_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in complaint(capsys, *arguments)


def test_more_held_out_rows_than_memory_has_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(SyntheticSource, "held_out_batches", too_many)
    error = complaint(capsys, "--generated", "64", "--held_out_rows", "100000000000")
    assert "--held_out_rows 100000000000: don't fit this computer's memory; give fewer" in error


def test_a_learning_rate_that_diverges_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--generated", "640", "--learning_rate", "1e30"]) == 1
    assert "criteo_deepctr: step " in capsys.readouterr().err


def test_a_file_of_other_columns_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rows").write_text("1\t2\t3\n")
    error = complaint(capsys, "--data", str(tmp_path / "rows"))
    assert f"--data: {tmp_path}/rows:1: 3 columns; expected 40" in error


def test_a_line_of_other_columns_is_named(capsys: pytest.CaptureFixture[str], rows: Path) -> None:
    lines = rows.read_text().splitlines()
    lines[76] += "\tmore"
    rows.write_text("\n".join(lines) + "\n")
    error = complaint(capsys, *SMALL, "--data", str(rows))
    assert f"{rows}:77: 41 columns, expected 40" in error


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_rows_speed_loss_and_auc_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    for stderr in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stderr)
        with command._progress("WDL, dim 9", 1000) as on_progress:
            on_progress(State(0, 500, 1234.5, 0.6931, None))
            on_progress(State(1, 250, 1234.5, 0.5, 0.75))
        shown = stderr.getvalue()
        if stderr.isatty():
            assert "WDL, dim 9, epoch 2" in shown
            assert "250/1000" in shown
            assert "1,234 samples/s  loss 0.5000  AUC 0.7500" in shown
        else:
            assert shown == ""
