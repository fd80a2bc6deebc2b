"""`pmemlab model predict`."""

from __future__ import annotations

import json

import pytest

from pmemlab.cli import main


@pytest.mark.long
def test_predict_answers_for_the_given_gpus_cache_skew_and_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = "model predict --json --gpus 8 --cache-gb 4 --skew 2 --checkpoint-minutes 10"
    assert main(argv.split()) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "modelled"
    assert answer["asked"] == [{"gpus": 8, "cache_gb": 4.0, "skew": 2.0, "minutes": 10.0}]
    epochs = {epoch["engine"]: epoch for epoch in answer["epochs"]}
    assert set(epochs) == {"dram_ps", "pmem_hash", "ori_cache", "pmem_oe"}
    assert epochs["dram_ps"]["relative_time"] == pytest.approx(0.60)
    assert epochs["pmem_hash"]["epoch_dollars"] is None
    assert epochs["pmem_oe"]["epoch_dollars"] < epochs["dram_ps"]["epoch_dollars"]
    assert 0 < answer["cache_accesses"][0]["misses"] < 0.136


def test_predict_prints_a_table_of_epochs_and_one_of_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["model", "predict", "--gpus", "4"]) == 0
    printed = capsys.readouterr().out
    for text in ("DRAM-PS", "PMem-Hash", "Ori-Cache", "PMem-OE", "misses", "5.75"):
        assert text in printed


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--gpus", "0"], "--gpus: 0: must be a whole number between 1 and 1024"),
        (["--gpus", "x"], "--gpus: x: must be a whole number between 1 and 1024"),
        (["--cache-gb", "x"], "--cache-gb: x: must be above 0"),
        (["--cache-gb", "-1"], "--cache-gb: -1: must be above 0"),
        (["--skew", "nan"], "--skew: nan: must be above 0"),
        (["--checkpoint-minutes", "601"], "--checkpoint-minutes: 601: must be between 0.1 and 600"),
        (["--checkpoint-minutes", "1e-300"], "1e-300: must be between 0.1 and 600"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    argv: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "predict", *argv]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("size", ["5000", "1e300"])
def test_a_cache_as_large_as_the_table_is_refused(
    capsys: pytest.CaptureFixture[str], size: str
) -> None:
    assert main(["model", "predict", "--cache-gb", size]) == 2
    assert "--cache-gb: a cache of" in capsys.readouterr().err
