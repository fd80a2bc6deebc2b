"""Hit rates of a first tier by its size, and predicted speeds in both modes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import refusal_of

import pmemlab.model.devices
from benchmarks import cache_sizes
from pmemlab.report.documents import read_folder

DEVICES = Path(pmemlab.model.devices.__file__).parent
SMALL = [
    *("--rows", "40000", "--embedding-dim", "64", "--batch-size", "8000"),
    *("--steps", "8", "--warm-up-steps", "4"),
]


@pytest.fixture
def memory_mode(tmp_path: Path) -> Path:
    """Memory mode on a computer whose CPU caches 1 MiB, so that a small table exceeds the cache."""
    for name in ("optane-100-x6", "ddr4-2666-x6"):
        text = (DEVICES / f"{name}.yaml").read_text()
        assert "last_level_cache_mib: 33" in text
        small = text.replace("last_level_cache_mib: 33", "last_level_cache_mib: 1")
        (tmp_path / f"{name}.yaml").write_text(small)
    path = tmp_path / "memory-mode.yaml"
    text = (DEVICES / "optane-100-x6-memory-mode.yaml").read_text()
    path.write_text(
        text.replace("dram: ddr4-2666-x6", "dram: ddr4-2666-x6.yaml").replace(
            "pmem: optane-100-x6", "pmem: optane-100-x6.yaml"
        )
    )
    return path


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    written = folder / "cache-sizes.json"
    assert cache_sizes.main([*SMALL, f"--path={folder}", f"--json={written}", *arguments]) == 0
    document: dict[str, Any] = json.loads(written.read_text())
    return document


def test_more_dram_answers_more_ids_by_the_papers_skew(
    tmp_path: Path, memory_mode: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    document = run(results, f"--device={memory_mode}", "--percent", "50", "1", "10")
    tiers = document["first_tiers"]
    assert [tier["share"] for tier in tiers] == [0.01, 0.1, 0.5]
    assert [tier["bytes"] for tier in tiers] == [400 * 512, 4000 * 512, 20000 * 512]
    hits = [tier["hit_rate"] for tier in tiers]
    assert all(less < more for less, more in pairwise(hits))
    assert 0.9 < hits[0] < 0.99  # the top 1 % of the keys take 95.7 % of the accesses
    # There is no memory mode with less DRAM than the CPU's own cache.
    small, *large = tiers
    assert small["memory_mode_memory_ns"] is small["app_direct_ids_per_s"] is None
    direct_ns = [tier["app_direct_memory_ns"] for tier in large]
    cached_ns = [tier["memory_mode_memory_ns"] for tier in large]
    assert direct_ns[0] > direct_ns[1] > 0
    # The moves that a step causes count, whenever they are made.
    assert direct_ns == pytest.approx([16.9, 9.15], rel=0.1)
    assert cached_ns[0] > cached_ns[1] > 0
    for tier in large:
        assert tier["app_direct_ids_per_s"] > 0
        assert tier["memory_mode_ids_per_s"] > 0
        assert 0 < tier["memory_mode_hit_rate"] <= 1
    cached = [tier["memory_mode_hit_rate"] for tier in large]
    assert cached[0] < cached[1]
    assert "10.00%" in capsys.readouterr().out
    # The tables' files are removed, and a report reads the remaining file.
    assert [path.name for path in results.iterdir()] == ["cache-sizes.json"]
    (sweep,) = read_folder(results).cache_sweeps
    assert (sweep.dram, sweep.pmem) == ("ddr4-2666-x6", "optane-100-x6")
    assert [tier.hit_rate for tier in sweep.first_tiers] == hits


def test_dram_has_room_for_whole_rows_as_the_engine_lays_them_out(tmp_path: Path) -> None:
    """Weights and sums of 5 floats are each aligned to 16 bytes."""
    document = run(tmp_path, "--embedding-dim=5", "--percent=1", "--steps=1")
    assert [tier["bytes"] for tier in document["first_tiers"]] == [400 * 64]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--device", "optane-100-x6"], "--device optane-100-x6: has no DRAM before it"),
        (["--device", "optane-100"], "no device of this name"),
        (["--percent", "100"], "100 is not between 0 and 100"),
        (["--percent", "half"], "half is no finite number above 0"),
        (["--rows", "10"], "10 is below 2000"),
        (["--path", "/no/folder"], "--path /no/folder: is no folder"),
        (["--json", "/no/folder/x.json"], "there is no folder /no/folder"),
        (["--json", "/tmp"], "--json /tmp: is a folder; give a file"),
    ],
)
def test_bad_input_is_named(
    arguments: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refusal_of(cache_sizes.main, capsys, *SMALL, *arguments)
