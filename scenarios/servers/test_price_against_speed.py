"""Prices and rates come as a table, and rows are the same on all compared servers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_name("price_against_speed.py")


pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'embstore[cluster]'"
    ),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--table-gib", "nan"), ("--table-gib", "-1"), ("--batches", "0")]
)
def test_a_table_or_a_training_of_nothing_is_refused(option: str, value: str) -> None:
    done = run(option, value)
    assert done.returncode == 2
    assert f"argument {option}: {value} is no" in done.stderr


def test_a_table_of_500_gib_needs_two_servers_with_dram_or_one_with_pmem() -> None:
    done = run("--table-gib", "500", "--batches", "10")
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    found = [(server.strip(), count.strip(), usd.strip()) for server, _, _, count, usd, *_ in rows]
    assert found == [
        ("ecs.r6e.13xlarge", "2", "6.08"),
        *[("ecs.re6p.13xlarge", "1", "3.80")] * 3,
    ]
    assert [cached.strip() for _, _, cached, *_ in rows] == ["100%", "20%", "5%", "1%"]
