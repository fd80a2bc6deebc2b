"""Leases: one run at a time uses a machine of a running lab."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from pmemlab.errors import LabError
from pmemlab.machines.container.clone import Clone

__all__ = ["Lease"]

_POLL_S = 0.2
_WAIT_LIMIT_S = 1800.0


_held_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


class Lease:
    """A lock on a file, which ends with the process that holds it, however that ends.

    A process forked by the holder doesn't hold the lock: it closes the inherited descriptor, which
    would otherwise keep the lock until the child ends too.
    """

    def __init__(
        self,
        path: Path,
        limit_s: float = _WAIT_LIMIT_S,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Waits for the lease. Raises `LabError`, which names the holder, after `limit_s`.

        on_wait: called once if there is a wait, with a text that names the holder.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:  # made by another user
            raise LabError(
                f"{path}: {error.strerror}; have who made it remove it, or take --machine guest"
            ) from error
        _held_leases.add(self)  # before the wait: this process may fork meanwhile
        deadline = time.monotonic() + limit_s
        has_reported = False
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = path.read_text().strip() or "another process"
                if time.monotonic() > deadline:
                    self._file.close()
                    raise LabError(
                        f"{path.stem} of the running lab is used by {holder} for more than "
                        f"{limit_s:.0f} s; wait for it, or take --machine guest"
                    ) from None
                if not has_reported:
                    on_wait(f"waits for {holder}, which uses {path.stem} of the running lab")
                    has_reported = True
                time.sleep(_POLL_S)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}")
        self._file.flush()

    @staticmethod
    def for_lab_machine(
        clone: Clone, name: str, on_wait: Callable[[str], None] = lambda _: None
    ) -> Lease:
        """Returns the lease of a machine of the clone's lab. Raises as the constructor."""
        return Lease(clone.root / ".lab" / "leases" / f"{name}.lock", on_wait=on_wait)

    def end(self) -> None:
        """Releases the lease. Idempotent."""
        self._file.close()


def _leave_to_parent() -> None:
    for lease in _held_leases:
        lease.end()


os.register_at_fork(after_in_child=_leave_to_parent)
