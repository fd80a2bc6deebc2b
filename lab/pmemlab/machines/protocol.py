"""What every kind of machine can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

from pmemlab.topology import Topology

__all__ = ["Accelerator", "Kind", "Machine", "Result"]

Kind = Literal["process", "guest", "container"]
Accelerator = Literal["kvm", "tcg", "none"]


@dataclass(frozen=True)
class Result:
    """How a command in a machine ended.

    returncode: its exit status, or minus the number of the signal that ended it.
    stdout, stderr: exactly what it wrote, as UTF-8 (other bytes as surrogate escapes).
    """

    returncode: int
    stdout: str
    stderr: str


class Machine(Protocol):
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
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run a command to its end.

        argv: the program and its arguments; no shell.
        env: added to the machine's environment, which has the topology's `environment` already.
        timeout: seconds; None waits for as long as the machine lives.

        Raises `CommandTimeoutError` past the timeout, `MachineDiedError` where the machine dies
        meanwhile. A command that fails is no error: see `Result.returncode`.
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
        """Cut the power: no shutdown, no flush. Only `stop` may follow."""
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
