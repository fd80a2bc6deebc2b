"""The suite that measures shards, run at a size that is too small to measure anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_suite_measures_each_server_at_both_operations(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    figures = tmp_path / "figures.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "embstore.bench", "cluster", "--json", str(figures)),
            *("--rows", "500", "--batch-size", "300", "--batches", "1", "--rounds", "1"),
            *("--shards", "2", "--tables", "3", "--samples", "50"),
        ],
        check=True,
        timeout=300,
    )
    told = json.loads(figures.read_text())
    results = told["results"]
    assert [(result["server"], result["operation"]) for result in results] == [
        (server, operation)
        for operation in ("pull", "pull and push")
        for server in ("a table in the worker", "2 shards", "a Ray actor with a dict")
    ] + [
        (server, "a step of DeepFM")
        for server in ("a table in the worker", "1 shard", "1 shard, prefetched")
    ]
    assert all(result["ids_per_s"]["median"] > 0 for result in results)
    many = told["many tables"]["result"]
    assert many["servers"] == 2
    assert many["processes"] >= 6, "those of the servers, the workers, the job and the program"
    assert many["pss_bytes"] > 100e6
    for figure in ("start_s", "step_ms", "one_by_one_ms", "here_ms", "ratio"):
        assert many[figure] > 0, figure
