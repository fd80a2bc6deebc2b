"""What every kind of machine can do."""

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
"""Is given a line without its end, as UTF-8 (other bytes as surrogate escapes)."""


@dataclass(frozen=True)
class Result:
    """How a command in a machine ended.

    returncode: its exit status, or minus the number of the signal that ended it.
    stdout, stderr: exactly what it wrote, as UTF-8 (other bytes as surrogate escapes).
    """

    returncode: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """What it wrote as an error, or all that it wrote; without spaces at both ends."""
        return self.stderr.strip() or self.stdout.strip()


@dataclass(frozen=True)
class Booting:
    """A machine that is about to boot.

    stop: ends that at once, from any thread: whoever opens it gets a `LabError`.
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
    """A started machine whose proof has passed. A context manager: leaving it stops it."""

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
        """Run a command to its end. Processes that it leaves behind run on; their output is not
        waited for.

        argv: the program and its arguments; no shell.
        env: added to the machine's environment, which has the topology's `environment` already.
        timeout: seconds; None waits for as long as the machine lives.
        on_line: told each whole line of stdout and stderr as it comes, in this thread. It may cut
            the machine's power.

        Raises `CommandTimeoutError` past the timeout, `MachineDiedError` where the machine dies
        meanwhile, TypeError or ValueError for what no machine can run. A command that
        fails is no error: see `Result.returncode`.
        """
        ...

    def facts(self) -> Mapping[str, object]:
        """The facts read back from the machine when it was last proved; fit for JSON."""
        ...

    def prove(self) -> None:
        """Read the facts again. Raises `ProofError` where it isn't what it says any more.

        Machines stay up for hours, and commands in them may take a mount away.
        """
        ...

    def power_cut(self) -> None:
        """Cut the power: no shutdown, no flush. Only `power_on` and `stop` may follow.

        Commands that run raise `MachineDiedError`. What is lost is a matter of the machine's kind:
        of a guest all that its kernel had in memory; its media keep what they were given, and its
        persistent memory every store that its CPU had made. Of a process or a host nothing but the
        commands, with all that they left running: what they had written, flushed or not, is there.
        """
        ...

    def power_on(self) -> None:
        """Boot again after a power cut, on the same media, and prove the machine again.

        Media keep what is on them; what the topology says under `format` is not run again, unless
        it has no media that outlive a power cut (`Topology.keeps_media`).

        Raises `LabError` where the machine has power, and where it can't be booted or proved: then
        only `stop` may follow.
        """
        ...

    def stop(self) -> None:
        """Stop the machine and remove all that it left on this computer. Idempotent."""
        ...

    def __enter__(self) -> Machine: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
