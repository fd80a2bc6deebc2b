"""Programs that show the effects of their module's import."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path

from .neighbour import write, written_by

IMPORTED_BY = os.getpid()
_stop = threading.Event()

if os.environ.get("IMPORT_FAILS"):
    raise RuntimeError("this module can't be imported")
if os.environ.get("IMPORT_NEVER_ENDS"):
    _stop.wait()
if os.environ.get("IMPORT_STARTS_A_THREAD"):
    threading.Thread(target=_stop.wait, daemon=True).start()


def write_state(medium: Path) -> None:
    print(IMPORTED_BY, os.getpid(), threading.active_count(), flush=True)
    (medium / "state").write_text("told")


def end_with_7(medium: Path) -> None:
    (medium / "state").write_text("ended")
    sys.exit(7)


def write_at_exit(medium: Path) -> None:
    atexit.register((medium / "state").write_text, "closed")


def never_end(medium: Path) -> None:
    (medium / "pid").write_text(str(os.getpid()))
    _stop.wait()


def write_by_a_neighbour(medium: Path) -> None:
    write(medium)


@written_by
def decorated(medium: Path) -> None:
    write(medium)


def write_state_from_variable(medium: Path) -> None:
    (medium / "state").write_text(os.environ["TOLD"])


class StateWriter:
    def write_state(self, medium: Path) -> None:
        write(medium)
