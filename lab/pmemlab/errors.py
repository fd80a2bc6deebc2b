"""The hierarchy of the lab's errors.

A `LabError` means that the lab broke: a machine did not start, died, or is not what its topology
says. A `LabError` is never the verdict of a scenario; programs that run scenarios report the two
separately.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CommandTimeoutError",
    "DeviceFileError",
    "LabError",
    "MachineDiedError",
    "MeasuringError",
    "Mismatch",
    "MissingFactError",
    "MissingRequirementError",
    "NotPublishedError",
    "PlanError",
    "PriceFileError",
    "ProofError",
    "ProvisionError",
    "TopologyError",
    "UnknownFactError",
    "lab_error_status",
]


def lab_error_status(argv: Sequence[str]) -> int:
    """Returns the exit status of `pmemlab` if the lab broke or its arguments are wrong.

    For `machine exec` it is 125, as for `docker run`: any other status may be its command's.
    """
    return 125 if list(argv[:2]) == ["machine", "exec"] else 2


class LabError(Exception):
    """The base of all errors of the lab itself."""


class TopologyError(LabError, ValueError):
    """A topology is unknown, or its file is malformed; the message names file and field."""


class DeviceFileError(LabError, ValueError):
    """A device is unknown, or its file is malformed; the message names file and field."""


class NotPublishedError(LabError):
    """A device's file has no figure for a requested time."""


class PlanError(LabError, ValueError):
    """A plan can't be made; the message names the argument, or says what would fit."""


class PriceFileError(LabError, ValueError):
    """A file of prices is malformed; the message names file and field."""


class MeasuringError(LabError):
    """A device can't be measured as requested; the message says why, and what to do."""


class MissingRequirementError(LabError):
    """This computer lacks something; the message names it and the command that gets it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; to get it: {remedy}")
        self.what = what
        self.remedy = remedy


class MachineDiedError(LabError):
    """The machine is gone, or never came up. `console` is the tail of its serial console."""

    def __init__(self, message: str, console: str = "") -> None:
        tail = f"\n--- end of its serial console ---\n{console}" if console else ""
        super().__init__(message + tail)
        self.console = console


class ProvisionError(LabError):
    """A provisioning command of a topology failed in the machine."""


class CommandTimeoutError(LabError):
    """A command in a machine ran past its timeout. It was killed with its process group, but a
    child that began a session of its own lives on.
    """

    def __init__(self, argv: Sequence[str], timeout: float, stdout: str, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)}: still running after {timeout:g} s, killed")
        self.stdout = stdout
        self.stderr = stderr


class UnknownFactError(LabError):
    """A proof demands a fact that the probe never reads, so it could never be checked."""

    def __init__(self, fact: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(fact, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`--help` of the probe lists them"
        super().__init__(f"{fact}: the probe knows no fact of this name; {hint}")
        self.fact = fact


class MissingFactError(LabError):
    """A fact has no value. kind: "absent" or "unreadable", as in `Mismatch`. why: for people."""

    def __init__(self, name: str, kind: Literal["absent", "unreadable"], why: str) -> None:
        super().__init__(f"{name}: {'could not be read' if kind == 'unreadable' else kind}: {why}")
        self.kind: Literal["absent", "unreadable"] = kind
        self.why = why


@dataclass(frozen=True)
class Mismatch:
    """A fact that does not hold.

    kind: "differs": the machine has the value `found`. "absent": the machine has nothing of the
        kind, for example no second region. "unreadable": the value could not be read.
    why: the reason for people, if the kind is "absent" or "unreadable".
    """

    fact: str
    expected: object
    found: object = None
    kind: Literal["differs", "absent", "unreadable"] = "differs"
    why: str = ""

    def __str__(self) -> str:
        if self.kind == "differs":
            return f"{self.fact}: expected {self.expected!r}, found {self.found!r}"
        how = "could not be read" if self.kind == "unreadable" else "there is none"
        return f"{self.fact}: expected {self.expected!r}, {how}: {self.why}"


class ProofError(LabError):
    """A machine is not what its topology says, so it was not opened. remedy: what to do."""

    def __init__(
        self,
        machine: str,
        mismatches: Sequence[Mismatch],
        facts: Mapping[str, object],
        remedy: str = "",
    ) -> None:
        lines = "\n  ".join(map(str, mismatches))
        then = f"\n{remedy}" if remedy else ""
        super().__init__(f"machine {machine} is not what it says:\n  {lines}{then}")
        self.machine = machine
        self.mismatches = tuple(mismatches)
        self.facts = dict(facts)
