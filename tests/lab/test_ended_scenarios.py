"""A scenario's programs end when the pytest that runs them is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_qemu import LIMIT_S, is_running, wait_until

SCENARIO = """
summary: a program that doesn't end
topology: dram
storage_types: [DRAM]
workload: {command: [python, wait.py]}
expect: {}
"""
SETTINGS = '[tool.pytest.ini_options]\npmemlab_scenarios = ["."]\n'
TEST = """
import pytest, sys

@pytest.mark.pmemlab("dram")
def test_mine(machine):
    machine.run([sys.executable, "wait.py"])
"""
PROGRAM = """
import os, time
open({pid_file!r}, "w").write(f"{{os.getpid()}}.")
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("given", ["mine.yaml", "test_mine.py"])
def test_a_program_ends_with_pytest(tmp_path: Path, given: str, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    for name, text in {
        "wait.py": PROGRAM.format(pid_file=str(pid_file)),
        "mine.yaml": SCENARIO,
        "test_mine.py": TEST,
        "pyproject.toml": SETTINGS,
    }.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", given, "--pmemlab-machine", "process"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as runner:
        wait_until(lambda: runner.poll() is not None or _is_whole(pid_file))
        assert runner.poll() is None, runner.communicate()[0]
        pid = int(pid_file.read_text().rstrip("."))
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=LIMIT_S)
    wait_until(lambda: not is_running(pid))
    if number == signal.SIGTERM:
        assert runner.returncode == 128 + number
        assert "ended by SIGTERM" in output
    else:
        assert runner.returncode == pytest.ExitCode.INTERRUPTED


def _is_whole(pid_file: Path) -> bool:
    return pid_file.exists() and pid_file.read_text().endswith(".")
