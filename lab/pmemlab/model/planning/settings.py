"""How a plan's machines are used. Imports neither the engine nor NumPy: see `options`."""

from __future__ import annotations

from dataclasses import dataclass

from pmemlab.errors import PlanError

__all__ = ["BATCH_IDS", "Settings", "require"]

BATCH_IDS = 106_496
"""Of a step, by default: 4,096 samples of 26 columns, as embstore.bench's."""
_MOST_THREADS = 1024  # more than any machine has; each takes its time to plan for


def require(holds: bool, argument: str, value: object, problem: str) -> None:
    """Raises PlanError where it doesn't hold."""
    if not holds:
        raise PlanError(f"{argument} {value}: {problem}")


@dataclass(frozen=True)
class Settings:
    """How machines are used.

    threads: of a machine that look up and train; fewer where it has fewer.
    first_tier_fractions: of all rows, in the first of several tiers; a plan each. By default what
    `embstore.bench tiers` measures too.
    middle_tier_fraction: of all rows, in the second of three.
    dram_bytes: of each machine that the table may take; None: as much as of everything else.
    usable_fraction: of what a machine holds; the rest is the system's and the training program's.
    max_machines: a plan that needs more doesn't fit.
    """

    threads: int = 16
    first_tier_fractions: tuple[float, ...] = (0.1,)
    middle_tier_fraction: float = 0.3
    dram_bytes: int | None = None
    usable_fraction: float = 0.9
    max_machines: int = 100

    def __post_init__(self) -> None:
        is_machine_s = 1 <= self.threads <= _MOST_THREADS
        require(is_machine_s, "--threads", self.threads, f"must be from 1 to {_MOST_THREADS}")
        require(self.max_machines >= 1, "--max-machines", self.max_machines, "must be 1 or more")
        require(
            0 < self.usable_fraction <= 1,
            "--usable-fraction",
            self.usable_fraction,
            "must be above 0 and at most 1",
        )
        for fraction in self.first_tier_fractions:
            require(0 < fraction < 1, "--first-tier-fraction", fraction, "must be between 0 and 1")
        middle = self.middle_tier_fraction
        require(0 < middle < 1, "--middle-tier-fraction", middle, "must be between 0 and 1")
        if self.dram_bytes is not None:
            require(self.dram_bytes > 0, "--dram-per-machine", self.dram_bytes, "must be above 0")
