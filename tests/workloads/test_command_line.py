"""The common parts of the command lines of workloads and benchmarks."""

from __future__ import annotations

import sys

import pytest
from lost_output import run_with_lost_output

from embstore.errors import InvalidArgumentError
from pmemlab.errors import LabError
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.command_line import new_parser, run_command
from pmemlab.workloads.run import DivergedError
from pmemlab.workloads.tables import main

COMMAND = (sys.executable, "-m", "pmemlab.workloads.tables")


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (DataError("no data"), 2, "mine: no data\n"),
        (InvalidArgumentError("no option"), 2, "mine: no option\n"),
        (LabError("no lab"), 2, "mine: no lab\n"),
        (OSError(28, "No space left on device"), 2, "mine: [Errno 28] No space left on device\n"),
        (MemoryError("4 EB"), 2, "mine: not enough memory: 4 EB\n"),
        (DivergedError("step 3: the loss is nan"), 1, "mine: step 3: the loss is nan\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_command_that_fails_says_why_in_a_line(
    failure: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_: object) -> None:
        raise failure

    assert run_command(new_parser("benchmarks.mine", ""), [], work) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("option", ["--rows", "--steps", "--cold-lookups", "--seed"])
def test_a_number_with_a_unit_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option, "1K"]) == 2
    assert f"argument {option}: 1K is no whole number" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_can_not_be_written_is_told_without_a_traceback(unbuffered: str) -> None:
    command = [*COMMAND, "--rows", "2000", "--steps", "1"]
    assert run_with_lost_output(command, unbuffered) == [
        (1, ""),
        (2, "tables: [Errno 28] No space left on device\n"),
    ]
