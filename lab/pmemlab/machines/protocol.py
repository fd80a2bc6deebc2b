"""The interface of every kind of machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

if TYPE_CHECKING:
    from pmemlab.machines.guest.link import Command
    from pmemlab.topology import Topology

__all__ = [
    "CRASH_STACKS_ENVIRONMENT",
    "KINDS",
    "Accelerator",
    "Booting",
    "Kind",
    "KindOrAuto",
    "Machine",
    "OnLine",
    "Result",
    "Spawner",
]

Kind = Literal["process", "host", "guest", "container"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
KindOrAuto: TypeAlias = Literal["auto", Kind]
Accelerator = Literal["kvm", "tcg", "none"]

OnLine = Callable[[str], None]
"""Takes a line without its end, as UTF-8 (other bytes as surrogate escapes)."""


CRASH_STACKS_ENVIRONMENT: Final = {"PYTHONFAULTHANDLER": "1"}
"""Environment that makes a command show its stacks when it crashes or is aborted. All of the lab's
commands have it, so one prepared process serves them."""


@dataclass(frozen=True)
class Result:
    """The result of a command in a machine.

    returncode: its exit status, or minus the number of the signal that ended it.
    stdout, stderr: its exact output, as UTF-8 (other bytes as surrogate escapes).
    """

    returncode: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """Its standard error, or its output if that is empty, without spaces at both ends."""
        return self.stderr.strip() or self.stdout.strip()


@dataclass(frozen=True)
class Booting:
    """A machine that is about to boot.

    stop: ends the boot at once, from any thread: the opening caller gets a `LabError`.
    """

    accelerator: Accelerator
    stop: Callable[[], None]


class Spawner(Protocol):
    """Starts commands in a machine; see `Link.spawn`."""

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        terminal: Mapping[str, int] | None = None,
        takes_input: bool = False,
    ) -> Command: ...


class Machine(Spawner, Protocol):
    """A started machine that has passed its proof. A context manager, which stops it."""

    @property
    def topology(self) -> Topology: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def accelerator(self) -> Accelerator: ...

    @property
    def python(self) -> str:
        """A Python inside the machine that can import `embstore` and `pmemlab`."""
        ...

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str | os.PathLike[str]] | None = None,
        timeout: float | None = None,
        on_line: OnLine | None = None,
    ) -> Result:
        """Runs a command to its end. Processes that the command leaves behind run on; their output
        is not waited for.

        argv: the program and its arguments; no shell.
        env: added to the machine's environment, which includes the topology's `environment`.
        timeout: seconds; None waits for as long as the machine lives.
        on_line: gets each whole line of stdout and stderr as it comes, in this thread. It may cut
            the machine's power.

        Raises `CommandTimeoutError` past the timeout, `MachineDiedError` if the machine dies
        meanwhile, TypeError or ValueError for arguments that no machine can run. A command that
        fails is no error: see `Result.returncode`.
        """
        ...

    def facts(self) -> Mapping[str, object]:
        """Returns the facts read back from the machine when it was last proved; fit for JSON."""
        ...

    def prove(self) -> None:
        """Reads the facts again. Raises `ProofError` if the machine isn't what it says any more.

        Machines stay up for hours, and commands in them may remove a mount.
        """
        ...

    def power_cut(self) -> None:
        """Cuts the power: no shutdown, no flush. Only `power_on` and `stop` may follow.

        Running commands raise `MachineDiedError`. The loss depends on the machine's kind. A guest
        loses everything in its kernel's memory; its media keep what was written to them, and its
        persistent memory keeps every store that the CPU had made. A process or a host loses only
        its commands, with the processes that they left: all written bytes stay, flushed or not.
        """
        ...

    def power_on(self) -> None:
        """Boots again after a power cut, on the same media, and proves the machine again.

        Media keep their content; the topology's commands under `format` are not run again, unless
        no media outlive a power cut (`Topology.keeps_media`).

        Raises `LabError` if the machine has power, or if it can't be booted or proved; after the
        latter only `stop` may follow.
        """
        ...

    def stop(self) -> None:
        """Stops the machine and removes everything that it left on this computer. Idempotent."""
        ...

    def __enter__(self) -> Machine: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
