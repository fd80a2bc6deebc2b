"""Paired timing: in every round each contender runs once, so that a ratio compares neighbours."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Work = Callable[[], None]

# What rates are by. The process's time, all threads together, tells what work costs on a machine
# that others load too, but not what threads gain, nor waiting.
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "process": time.process_time,
}

# For so long no thread works, but for a tenth of it, when nothing was put off any more.
IDLE_FOR_S = 0.02


def quiesce() -> None:
    """Returns when no thread of the process works any more, or after 20 s: what one contender
    put off (LevelDB compacts behind its callers' backs) would slow the next."""
    deadline = time.perf_counter() + 20
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(IDLE_FOR_S)
        if time.process_time() - before < IDLE_FOR_S / 10:
            return


@dataclass(frozen=True)
class Figure:
    """Rates of one contender over the rounds, in items/s, and their ratio to the yardstick's."""

    median: float
    minimum: float
    maximum: float
    ratio: float | None  # median over the rounds; None where the yardstick doesn't do this

    def told(self, unit: float, name: str) -> str:
        """For a line: the median in units of so many items a second, and the ratio."""
        ratio = "" if self.ratio is None else f" ({self.ratio:.2f})"
        return f"{self.median / unit:.3g} {name}{ratio}"


def run_in_threads(work: Sequence[Work], clock: str = "wall") -> float:
    """Runs each in a thread of its own, all at once. Returns the seconds until the last is done."""
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

    work: for each contender, what its threads do. items: how many items all its threads process.
    clock: one of CLOCKS.
    """
    rates: dict[str, list[float]] = {name: [] for name in work}
    for counted in [False] + [True] * rounds:
        for name, jobs in work.items():
            rate = items / run_in_threads(jobs, clock)
            if counted:
                rates[name].append(rate)
        on_round()
    return figures(rates, yardstick)


def figures(rates: Mapping[str, Sequence[float]], yardstick: str) -> dict[str, Figure]:
    """Sums up each contender's rates, one a round, beside the yardstick's of the same rounds."""
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
