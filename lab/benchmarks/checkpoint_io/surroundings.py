"""Where this process runs, and what that means for its figures."""

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
    """Whether this is one of the lab's guests: only they have the port of its agent."""
    return any(name.read_text().strip() == PORT_NAME for name in ports.glob("*/name"))


def rates_kind(guest: bool) -> MetricKind:
    """A guest's media are emulated, whatever its CPU is: rates say that something works."""
    return "functional-only" if guest else "measured"


def default_eviction(guest: bool) -> Eviction:
    """A guest's caches are nobody else's."""
    return "drop_caches" if guest and os.geteuid() == 0 else "posix_fadvise"
