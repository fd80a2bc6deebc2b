"""Finds out where this process runs, and what that means for its figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchmarks.checkpoint_io.page_cache import Eviction
from pmemlab.machines.guest.agent import PORT_NAME
from pmemlab.scenarios.metrics import MetricKind

__all__ = ["default_eviction", "in_lab_guest", "rates_kind"]

_PORTS: Final = Path("/sys/class/virtio-ports")


def in_lab_guest(ports: Path = _PORTS) -> bool:
    """Returns whether this is one of the lab's guests: only guests have the agent's port."""
    return any(name.read_text().strip() == PORT_NAME for name in ports.glob("*/name"))


def rates_kind(guest: bool) -> MetricKind:
    """Returns the kind of rates. A guest's media are emulated, so its rates only show that it
    works.
    """
    return "functional-only" if guest else "measured"


def default_eviction(guest: bool) -> Eviction:
    """Returns the way to evict. In a guest, no one else uses the caches, so root may drop
    them all.
    """
    return "drop_caches" if guest and os.geteuid() == 0 else "posix_fadvise"
