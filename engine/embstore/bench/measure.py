"""Paired timing: each contender runs once in every round, so that ratios compare runs of the same
minute.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Work = Callable[[], None]

# The clocks of rates. The CPU time of the process, all threads together, shows the cost of work on
# a loaded machine, but neither the gain of threads nor waiting.
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "process": time.process_time,
}

# The process counts as idle if its threads used less than a tenth of this time.
IDLE_FOR_S = 0.02


def quiesce() -> None:
    """Returns when no thread of the process works any more, or after 20 s. One contender's threads
    would slow the next contender, or take CPU time that counts as its own: LevelDB compacts after
    its calls have returned, and PyTorch's threads spin for a while in wait for more work.
    """
    deadline = time.perf_counter() + 20
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(IDLE_FOR_S)
        if time.process_time() - before < IDLE_FOR_S / 10:
            return


@dataclass(frozen=True)
class Figure:
    """One contender's rates over the rounds, in items/s, and their ratio to the yardstick's."""

    median: float
    minimum: float
    maximum: float
    ratio: float | None  # median over the rounds; None if the yardstick doesn't do this

    def as_text(self, unit: float, name: str) -> str:
        """Returns a text with the median, in multiples of `unit` items/s, and the ratio."""
        ratio = "" if self.ratio is None else f" ({self.ratio:.2f})"
        return f"{self.median / unit:.3g} {name}{ratio}"


def run_in_threads(work: Sequence[Work], clock: str = "wall") -> float:
    """Runs each function in a thread of its own, all at once. Returns the seconds until the last
    one has ended, and raises the first error.
    """
    now = CLOCKS[clock]
    if len(work) == 1:
        start = now()
        work[0]()
        return now() - start
    errors: list[BaseException] = []
    gate = threading.Barrier(len(work) + 1)

    def run(job: Work) -> None:
        gate.wait()
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in work]
    for thread in threads:
        thread.start()
    gate.wait()
    start = now()
    for thread in threads:
        thread.join()
    seconds = now() - start
    if errors:
        raise errors[0]
    return seconds


def compare(
    work: Mapping[str, Sequence[Work]],
    items: int,
    *,
    yardstick: str,
    rounds: int,
    on_round: Callable[[], None],
    clock: str = "wall",
) -> dict[str, Figure]:
    """Times each contender's work `rounds` times, in turn, after one round that isn't counted.

    work: for each contender, a function for each of its threads. items: the number of items that
    all its threads process together. clock: one of CLOCKS.
    """
    rates: dict[str, list[float]] = {name: [] for name in work}
    for counted in [False] + [True] * rounds:
        for name, jobs in work.items():
            quiesce()
            rate = items / run_in_threads(jobs, clock)
            if counted:
                rates[name].append(rate)
        on_round()
    return figures(rates, yardstick)


def figures(rates: Mapping[str, Sequence[float]], yardstick: str) -> dict[str, Figure]:
    """Returns each contender's figure from its rates, one for each round, and the yardstick's."""
    return {
        name: Figure(
            median=statistics.median(own),
            minimum=min(own),
            maximum=max(own),
            ratio=statistics.median(
                rate / other for rate, other in zip(own, rates[yardstick], strict=True)
            )
            if yardstick in rates
            else None,
        )
        for name, own in rates.items()
    }
