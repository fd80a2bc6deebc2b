"""`pmemlab serve`: one guest, for other processes to use."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pmemlab.errors import LabError
from pmemlab.guest.control import ControlServer
from pmemlab.machines.guest import open_guest_machine
from pmemlab.proof import Proof
from pmemlab.topology import Topology

__all__ = ["PROOF_FILE", "serve"]

PROOF_FILE = "proof.json"


def serve(
    topology: Topology,
    state: Path,
    on_step: Callable[[str], None] = lambda _: None,
    on_ready: Callable[[Proof], None] = lambda _: None,
) -> None:
    """Keep a proved guest until SIGTERM or SIGINT, then leave nothing of it.

    state: folder for its files; made if need be. Once the guest is proved, the proof is there as
        proof.json, and `pmemlab.guest.control.attach` reaches the guest.

    Raises as `open_guest_machine` does, and `MachineDiedError` where the guest ends by itself.
    To be called from the main thread.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"state folder {state}: {error.strerror}") from error
    proof = state / PROOF_FILE
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        with open_guest_machine(topology, state, on_step) as machine:
            proof.unlink(missing_ok=True)  # of one that was killed; the folder is ours now
            with ControlServer(state, machine):
                machine.proof.write(proof)
                on_ready(machine.proof)
                try:
                    machine.link.wait_closed()
                finally:
                    proof.unlink(missing_ok=True)
                raise machine.died("ended by itself")
    except _EndRequest:
        return


class _EndRequest(BaseException):
    """Not an error, so nothing on the way must take it for one."""


def _end(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever is impatient must not stop the clean-up
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise _EndRequest
