"""The command that trains Wide & Deep."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import document_of, refusal_of, skip_without

import pmemlab.model.devices
from pmemlab.workloads import wdl
from pmemlab.workloads.criteo import COLUMNS
from pmemlab.workloads.wide_and_deep import DENSE_LIBRARIES

SMALL = [
    *("--steps", "24", "--batch-size", "64", "--embedding-dim", "8", "--hidden-units", "32"),
    *("--keys-per-column", "20000", "--held-out-rows", "1000", "--dense", "numpy"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return document_of(wdl.main, capsys, *SMALL, *arguments)


complaint = partial(refusal_of, wdl.main)


@pytest.mark.parametrize("dense", DENSE_LIBRARIES)
def test_a_file_mapped_by_libpmem_gives_the_bits_of_dram(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dense: str
) -> None:
    skip_without("libpmem.so.1", "libpmem1")
    document = run(
        capsys,
        *("--dense", dense),
        *("--storage-type", "PMEM_LIBPMEM", "--storage-path", str(tmp_path)),
        *("--storage-size", "1000000", "--reference", "DRAM"),
    )
    reference, trained = document["reference"], document["run"]
    assert trained["losses"] == reference["losses"]
    assert len(trained["losses"]) == 24
    assert trained["state_sha256"] == reference["state_sha256"]
    assert trained["auc"] == reference["auc"]
    files = {tier["file"] for table in trained["tables"] for tier in table["tiers"]}
    assert len(files) == wdl.TABLES
    assert all(file.startswith(f"{tmp_path}/") for file in files)
    assert reference["tables"] == []  # the reference's rows are not looked for


def test_training_makes_the_auc_rise(capsys: pytest.CaptureFixture[str]) -> None:
    barely = run(capsys, "--steps", "1")["run"]
    longer = run(capsys, "--steps", "60")["run"]
    assert barely["auc"] < 0.6 < longer["auc"]
    assert longer["loss"] < barely["loss"]
    assert longer["held_out_rows"] == 1000


def test_another_seed_gives_other_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise comparisons of digests and losses would prove nothing."""
    first = run(capsys, "--steps", "2")["run"]
    other = run(capsys, "--seed", "2", "--steps", "2")["run"]
    assert first["losses"] != other["losses"]
    assert first["state_sha256"] != other["state_sha256"]


def test_the_evidence_says_what_each_table_holds(capsys: pytest.CaptureFixture[str]) -> None:
    trained = run(capsys, "--steps", "2")["run"]
    names = {table["name"] for table in trained["tables"]}
    assert names == {f"{part}_C{n}" for part in ("wide", "deep") for n in range(1, 27)}
    for table in trained["tables"]:
        (tier,) = table["tiers"]
        assert 0 < tier["rows"] <= 128
        assert tier["name"] == "DRAM"
        assert sum(tier["nodes"].values()) > 0
        assert table["stats"]["tiers"][0]["rows"] == tier["rows"]


def test_rates_count_samples_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    trained = run(capsys)["run"]
    assert trained["samples"] == 24 * 64
    assert trained["samples_per_s"] == pytest.approx(23 * 64 / trained["train_seconds"])
    # Lookups take only a part of the time, and there are 52 per sample.
    assert trained["lookups_per_s"] > 52 * trained["samples_per_s"]


def test_a_criteo_file_is_trained_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    rng = np.random.default_rng(0)
    rows = [
        [str(rng.integers(2)), *["1"] * 13, *(f"{key:08x}" for key in rng.integers(9, size=26))]
        for _ in range(200)
    ]
    path.write_text("\n".join("\t".join(row) for row in rows))
    trained = run(capsys, "--data", str(path), "--steps", "5")["run"]
    assert trained["held_out_rows"] == 20
    assert max(tier["rows"] for table in trained["tables"] for tier in table["tiers"]) <= 9


def test_without_json_a_summary_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert wdl.main([*SMALL, "--steps", "2"]) == 0
    shown = capsys.readouterr().out
    for word in ("samples/s", "lookups/s", "loss", "AUC", "1,000 held-out rows"):
        assert word in shown


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--steps: 0 is not above 0" in complaint(capsys, "--steps", "0")
    assert "storage type 'PMEM' is unknown; there are DRAM" in complaint(
        capsys, "--storage-type", "PMEM"
    )
    assert "storage_path is missing" in complaint(capsys, "--storage-type", "PMEM_LIBPMEM")
    assert "keys_per_column is 5" in complaint(capsys, "--keys-per-column", "5")
    huge = ("--batch-size", str(1 << 48), "--dense", "numpy")
    assert "wdl: not enough memory: " in complaint(capsys, *huge)
    absent = tmp_path / "absent.tsv"
    assert f"{absent}: can't be read" in complaint(capsys, "--data", str(absent))


def test_a_bad_row_met_while_training_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    good = ["1", *["1"] * 13, *["aa"] * 26]
    path.write_text("\n".join(",".join(row) for row in (COLUMNS, good, good[:-1])))
    assert "rows.csv:3: 39 columns" in complaint(capsys, "--data", str(path), "--steps", "2")


@pytest.mark.parametrize("dense", DENSE_LIBRARIES)
def test_a_run_that_diverges_is_no_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dense: str
) -> None:
    path = tmp_path / "rows.csv"
    row = [*["3e38"] * 13, *["7"] * 26]  # label-encoded; the sum is beyond float32
    path.write_text("\n".join(",".join(["0", label, *row]) for label in "010101010"))
    assert wdl.main([*SMALL, "--dense", dense, "--json", "--data", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ": the loss is " in captured.err


def test_a_store_that_is_too_small_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    shown = complaint(capsys, *SMALL, "--storage-size", "1024")
    assert shown.startswith("wdl: ")
    assert "raise storage_size" in shown


SLOW_DISK = """\
name: slow-disk
title: A disk that reads a block in a tenth of a second
kind: block
capacity_gb: 100
media_line_bytes: 4096
sources:
  here: {title: made up, url: none, what: everything}
idle_latency:
  - {operation: read, pattern: random, value: 100000, unit: us, source: here}
  - {operation: write, pattern: sequential, value: 1, unit: us, source: here}
bandwidth:
  - operation: read
    pattern: random
    unit: MB/s
    source: here
    points: [{bytes: 4096, in_flight: [1, 1024], values: [0.04096, 0.04096]}]
  - operation: write
    pattern: sequential
    unit: MB/s
    source: here
    points: [{bytes: 131072, in_flight: [1], values: [1000]}]
"""
# Filling tables takes most of these runs' time; with 2000 keys no row would reach the disk.
ON_DISK = (
    *("--storage-type", "DRAM_SSDHASH", "--storage-size", "12000", "--direct-io", "--fill"),
    *("--keys-per-column", "12000"),
)


@pytest.fixture
def slow_disk(tmp_path: Path) -> str:
    path = tmp_path / "slow-disk.yaml"
    path.write_text(SLOW_DISK)
    return str(path)


def test_a_run_is_predicted_on_devices_and_slower_on_slower_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, slow_disk: str
) -> None:
    devices = (f"here,{slow_disk}", "optane-100-x6,here", "here,here")
    done = run(
        capsys, *ON_DISK, "--storage-path", str(tmp_path), "--steps", "6", "--predict", *devices
    )["run"]
    on_slow_disk, on_optane, as_here = done["predictions"]
    assert on_slow_disk["devices"] == [None, "slow-disk"]
    assert on_optane["devices"] == ["optane-100-x6", None]
    assert as_here["samples_per_s"] == pytest.approx(done["samples_per_s"])
    assert on_optane["samples_per_s"] <= as_here["samples_per_s"]
    # Five of the six steps are timed; each read takes the training thread a tenth of a second.
    reads = on_slow_disk["step_ms"]["tier1"] * 5 / 100
    assert reads == pytest.approx(round(reads))
    lookups = 5 * 64 * wdl.TABLES
    assert 0.005 * lookups < reads < 0.5 * lookups
    assert on_slow_disk["step_ms"]["compute"] == as_here["step_ms"]["compute"]


def test_this_computers_memory_time_is_not_counted_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slow = ("--steps", "6", "--predict", "optane-100-x1")
    here_file = tmp_path / "here.yaml"
    shutil.copy(Path(pmemlab.model.devices.__file__).with_name("optane-100-x1.yaml"), here_file)
    done = run(capsys, *slow, "--here", str(here_file))["run"]
    (as_here,) = done["predictions"]
    # The devices are equal, so the same time is subtracted and added.
    assert as_here["samples_per_s"] <= done["samples_per_s"] * 1.0001
    assert "DRAM has 1 tiers" in complaint(capsys, *slow, "--here", "here,here")
    assert "gone.yaml" in complaint(capsys, *slow, "--here", "gone.yaml")


def test_filled_tables_have_a_row_of_every_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short_run_options = ("--keys-per-column", "2000", "--steps", "2")
    done = run(capsys, *ON_DISK, "--storage-path", str(tmp_path), *short_run_options)["run"]
    rows = [sum(tier["rows"] for tier in table["tiers"]) for table in done["tables"]]
    assert rows == [2000] * wdl.TABLES
    assert "--fill" in complaint(capsys, "--fill", "--data", "rows.csv")


def test_impossible_devices_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "DRAM has 1 tiers" in complaint(capsys, "--predict", "ddr4-2666-x6,nvme-p4510")
    assert "nvme-p4510 is a disk" in complaint(capsys, "--paced", "nvme-p4510")
    assert "no-such-device" in complaint(capsys, "--predict", "no-such-device")
    ssd = ("--storage-type", "DRAM_SSDHASH", "--storage-path", "/tmp")
    assert "add --direct-io" in complaint(capsys, *ssd, "--predict", "here,nvme-p4510")
    assert "DRAM has no SSDHASH tier" in complaint(capsys, "--direct-io")


def test_the_command_line_is_read_without_pytorch() -> None:
    """A wrong option in an emulated machine should not cost half a minute of imports."""
    script = (
        "import sys; from pmemlab.workloads import wdl; wdl.argument_parser();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.long
def test_training_does_not_import_pytorchs_compiler() -> None:
    """Importing it takes half a minute on an emulated machine."""
    script = (
        "import sys; from pmemlab.workloads import wdl;"
        "wdl.main(['--steps', '2', '--hidden-units', '4', '--held-out-rows', '10']);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
