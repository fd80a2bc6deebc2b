"""One run at a time on a machine of a running lab."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from pmemlab.errors import LabError
from pmemlab.machines.container.clone import Clone

__all__ = ["Lease"]

_POLL_S = 0.2
_WAIT_LIMIT_S = 1800.0


class Lease:
    """A lock on a file: it ends with the process that holds it, however that ends."""

    def __init__(self, path: Path, limit_s: float = _WAIT_LIMIT_S) -> None:
        """Wait for the lease. Raises `LabError`, which says whose it is, after `limit_s`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+")
        deadline = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = path.read_text().strip() or "another process"
                    self._file.close()
                    raise LabError(
                        f"{path.stem} of the running lab is used by {holder} for more than "
                        f"{limit_s:.0f} s; wait for it, or take --machine guest"
                    ) from None
                time.sleep(_POLL_S)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}")
        self._file.flush()

    @staticmethod
    def of_lab_machine(clone: Clone, name: str) -> Lease:
        """The lease of a machine of the clone's lab. Raises as the constructor."""
        return Lease(clone.root / ".lab" / "leases" / f"{name}.lock")

    def end(self) -> None:
        """Let others have it. Idempotent."""
        self._file.close()
