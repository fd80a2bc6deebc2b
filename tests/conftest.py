"""No test is about how fast this computer is right now, or about what its user has set."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# `make` sets these where a newer QEMU and kernel are unpacked; tests bring QEMUs of their own.
for name in ("PMEMLAB_QEMU", "PMEMLAB_KERNEL"):
    os.environ.pop(name, None)

# A shell has what it runs in the background ignore Ctrl-C; some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What tests import lives on: no collection looks for garbage there, which takes a quarter of a
    second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
