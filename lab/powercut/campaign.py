"""Runs many tries of an experiment, several at a time; and mutations, with call sites taken out."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from powercut.errors import PowercutError
from powercut.experiment import Experiment, Outcome
from powercut.medium import Medium
from powercut.record import CallSite
from powercut.running import RunningProcesses
from powercut.settings import Moment

__all__ = ["Failure", "MutationResult", "Results", "default_jobs", "run_tries", "try_mutation"]


@dataclass(frozen=True)
class Failure:
    """A try that failed, and the one-line command that repeats it."""

    outcome: Outcome
    replay: str


@dataclass
class Results:
    tried: int = 0
    ended_early: int = 0
    failures: list[Failure] = field(default_factory=list)
    stacks: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, outcome: Outcome, replay: str) -> None:
        self.tried += 1
        self.ended_early += outcome.verdict == "ended"
        if outcome.cut is not None:
            self.stacks.add((outcome.cut.kind, outcome.cut.function, *outcome.cut.frames))
        if outcome.is_bad:
            self.failures.append(Failure(outcome, replay))

    def failures_text(self, most: int) -> str:
        """Returns the first failure with each message, for the first `most` messages."""
        alike: dict[str, list[Failure]] = {}
        for failure in self.failures:
            alike.setdefault(failure.outcome.message, []).append(failure)
        shown = [_text(failures[0], len(failures)) for failures in [*alike.values()][:most]]
        if len(alike) > most:
            shown.append(f"other messages: {len(alike) - most}")
        return "\n".join(shown)


def _text(failure: Failure, count: int) -> str:
    """Returns a failure as text. count: number of failures with its message."""
    cut = failure.outcome.cut
    details = [cut.text() if cut else "the program ended before the power went", failure.replay]
    if count > 1:
        details.append(f"other cuts with this message: {count - 1}")
    message = failure.outcome.message or failure.outcome.verdict
    return f"{message}\n{textwrap.indent(chr(10).join(details), '  ')}"


@dataclass(frozen=True)
class MutationResult:
    """A mutation's tries. failure: the first that shows the need for `site`'s calls, or None."""

    site: CallSite
    tried: int
    failure: Failure | None


def default_jobs(experiment: Experiment) -> int:
    """Returns the number of processors, or 1 if the experiment's folders have fixed paths."""
    return 1 if experiment.under else len(os.sched_getaffinity(0))


def run_tries(
    experiment: Experiment,
    tries: Iterable[Sequence[Moment]],
    template: Medium | None,
    *,
    jobs: int,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
    enough_failures: int | None = None,
) -> Results:
    """Runs each try, whose moments come one after another on one medium, and stops after
    `enough_failures` failures. Raises `PowercutError`, also if no try had its power cut.
    """
    results = Results()
    queue: Iterator[Sequence[Moment]] = iter(tries)
    all_running = RunningProcesses()
    with ThreadPoolExecutor(jobs, initializer=all_running.adopt_this_thread) as workers:
        running: dict[Future[Outcome], Sequence[Moment]] = {}

        def start(count: int) -> None:
            for moments in itertools.islice(queue, count):
                running[workers.submit(experiment.cut, moments, template)] = moments

        try:
            start(2 * jobs)
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    moments = running.pop(future)
                    outcome = future.result()
                    replay = experiment.replay_command(moments) if outcome.is_bad else ""
                    results.add(outcome, replay)
                    on_outcome(outcome)
                if enough_failures is not None and len(results.failures) >= enough_failures:
                    queue = iter(())
                start(len(done))
        except BaseException:  # Ctrl-C too: does not wait for the other tries
            workers.shutdown(wait=False, cancel_futures=True)
            all_running.end()
            raise
    if results.ended_early == results.tried:
        raise PowercutError(
            "the program ended before the power went, so no cut was tried: --at is beyond the cut "
            "points of this run (--list shows them), or runs differ, as by threads or a file "
            "outside {medium}"
        )
    return results


def try_mutation(
    experiment: Experiment,
    site: CallSite,
    tries: Iterable[Sequence[Moment]],
    template: Medium | None,
    *,
    jobs: int,
) -> MutationResult:
    """Takes the calls of a site out, and tries until a try fails."""
    results = run_tries(
        experiment.without(site.name), tries, template, jobs=jobs, enough_failures=1
    )
    return MutationResult(site, results.tried, results.failures[0] if results.failures else None)
