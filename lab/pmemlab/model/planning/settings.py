"""How a plan uses its machines. Imports neither the engine nor NumPy: see `options`."""

from __future__ import annotations

from dataclasses import dataclass

from pmemlab.errors import PlanError

__all__ = ["BATCH_IDS", "Settings", "require"]

BATCH_IDS = 106_496
"""The default ids of a step: 4,096 samples of 26 columns, as in embstore.bench."""
_MAX_THREADS = 1024  # more than any machine has; each thread makes planning slower


def require(holds: bool, argument: str, value: object, problem: str) -> None:
    """Raises PlanError if `holds` is false."""
    if not holds:
        raise PlanError(f"{argument} {value}: {problem}")


@dataclass(frozen=True)
class Settings:
    """How a plan uses its machines.

    threads: threads per machine that look up and train; fewer if the machine has fewer.
    first_tier_fractions: shares of all rows in the first of several tiers; each gives a plan. The
    default is what `embstore.bench tiers` measures too.
    middle_tier_fraction: share of all rows in the second of three tiers.
    dram_bytes: DRAM of each machine that the tables may take; None: limited by usable_fraction
    alone.
    usable_fraction: share of a machine's media for the tables; the system and the training program
    use the rest.
    max_machines: a plan that needs more machines doesn't fit.
    """

    threads: int = 16
    first_tier_fractions: tuple[float, ...] = (0.1,)
    middle_tier_fraction: float = 0.3
    dram_bytes: int | None = None
    usable_fraction: float = 0.9
    max_machines: int = 100

    def __post_init__(self) -> None:
        is_machine_s = 1 <= self.threads <= _MAX_THREADS
        require(is_machine_s, "--threads", self.threads, f"must be from 1 to {_MAX_THREADS}")
        require(self.max_machines >= 1, "--max-machines", self.max_machines, "must be 1 or more")
        require(
            0.01 <= self.usable_fraction <= 1,
            "--usable-fraction",
            self.usable_fraction,
            "must be from 0.01 to 1",
        )
        for fraction in self.first_tier_fractions:
            require(0 < fraction < 1, "--first-tier-fraction", fraction, "must be between 0 and 1")
        middle = self.middle_tier_fraction
        require(0 < middle < 1, "--middle-tier-fraction", middle, "must be between 0 and 1")
        if self.dram_bytes is not None:
            require(self.dram_bytes > 0, "--dram-per-machine", self.dram_bytes, "must be above 0")
