"""`pmemlab machine serve`: keeps one guest for other processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pmemlab.errors import LabError
from pmemlab.machines.guest.control import ControlServer
from pmemlab.machines.guest.machine import GuestMachine, open_guest_machine
from pmemlab.machines.state_folder import POWER_CUT_FILE, PROOF_FILE
from pmemlab.proof import Proof
from pmemlab.topology import Topology

__all__ = ["serve"]


def serve(
    topology: Topology,
    state: Path,
    on_step: Callable[[str], None] = lambda _: None,
    on_ready: Callable[[Proof], None] = lambda _: None,
) -> None:
    """Keeps a proved guest until SIGTERM or SIGINT, then removes all of it.

    state: folder for its files, made if need be. Once the guest is proved, its proof.json is there,
        and `control.attach` reaches the guest, whose power can be cut and switched on again.

    Raises as `open_guest_machine` does, and `MachineDiedError` if the guest ends by itself.
    REQUIRES: the caller is the main thread.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"state folder {state}: {error.strerror}") from error
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        with open_guest_machine(topology, state, on_step) as machine:
            guest = _Guest(machine, state)
            guest.write_state(None)  # left by a killed server; the folder is ours now
            try:
                with ControlServer(state, guest):
                    guest.write_state(machine.proof)
                    on_ready(machine.proof)
                    raise machine.wait_ended()
            finally:
                guest.write_state(None)
    except _EndRequest:
        return


class _Guest:
    """A guest whose state folder says whether it has power."""

    def __init__(self, machine: GuestMachine, state: Path) -> None:
        self._machine = machine
        self._proof = state / PROOF_FILE
        self._power_cut = state / POWER_CUT_FILE
        self.spawn = machine.spawn

    def write_state(self, proof: Proof | None, *, power_cut: bool = False) -> None:
        """Writes to the folder whether the machine is proved, or without power."""
        if power_cut:
            self._power_cut.touch()
        else:
            self._power_cut.unlink(missing_ok=True)
        if proof is None:
            self._proof.unlink(missing_ok=True)
        else:
            proof.write(self._proof)

    def power_cut(self) -> None:
        self._machine.power_cut()
        self.write_state(None, power_cut=True)

    def power_on(self) -> None:
        self._machine.power_on()
        self.write_state(self._machine.proof)


class _EndRequest(BaseException):
    """A request to end. It is not an error, so `except Exception` must not catch it."""


def _end(_number: int, _frame: FrameType | None) -> None:
    # A second signal must not interrupt the clean-up. The handlers are not SIG_IGN: then Python
    # would print an OSError for a signal that came together with this one.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, _do_nothing)
    raise _EndRequest


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass
