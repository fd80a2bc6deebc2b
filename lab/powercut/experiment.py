"""A program, the check of its recovery, and the results of power cuts at given moments."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Literal, Protocol

from powercut import shell
from powercut.aftermath import Cut, Folders, apply_cut
from powercut.errors import PowercutError
from powercut.followed import check_changes_are_followed, is_static
from powercut.forks import Forks
from powercut.library import library
from powercut.medium import Medium, default_base, new_medium
from powercut.record import Record, read_record
from powercut.running import killable_by_pool
from powercut.settings import CutSettings, Moment

__all__ = ["CommandRecovery", "Experiment", "Outcome", "Recovery", "Verdict"]

Verdict = Literal["passed", "failed", "ended", "broke"]

_TAIL_CHARACTERS = 2000
_MAX_ROUNDS = 1_000_000  # each try has a list of its moments


class Recovery(Protocol):
    """A check of the state that a cut left."""

    def check(self, medium: Medium, run: Callable[[Sequence[str]], str | None], /) -> str | None:
        """Returns what is wrong, or None. run: runs a command; returns how it failed."""

    def as_argument(self) -> str:
        """Returns the check as one argument of a shell, for `--recover`."""

    def remark(self) -> str:
        """Returns what a replay with these words lacks, or an empty text."""


@dataclass(frozen=True)
class CommandRecovery:
    """A command that ends with status 0 if all is well."""

    command: tuple[str, ...]

    def check(self, medium: Medium, run: Callable[[Sequence[str]], str | None], /) -> str | None:
        return run(medium.fill(self.command))

    def as_argument(self) -> str:
        return shell.quote(shell.join(self.command))

    def remark(self) -> str:
        return ""


@dataclass(frozen=True)
class Outcome:
    """The result of a try.

    verdict: "passed" or "failed" by the recovery's check; "ended": the program ended before its
        moment, and the check passed; "broke": the program failed by itself.
    """

    moment: Moment
    verdict: Verdict
    cut: Cut | None = None
    message: str = ""

    @property
    def is_bad(self) -> bool:
        return self.verdict in ("failed", "broke")


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    program, prepare: commands, in which {medium} stands for the medium's folder. prepare fills the
    medium before the program runs, without a cut.
    rounds: how often the program runs, is cut and is checked on one medium.
    commands: starts prepare, the recovery's command, and the program if there is no `starter`.
    `prepared` closes both at the end.
    """

    program: tuple[str, ...]
    recovery: Recovery | None = None
    settings: CutSettings = field(default_factory=CutSettings)
    prepare: tuple[str, ...] = ()
    under: tuple[Path, ...] = ()
    base: Path = field(default_factory=default_base)
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    rounds: int = 1
    commands: Forks = field(default_factory=Forks)
    starter: Forks | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= _MAX_ROUNDS:
            raise PowercutError(f"rounds: {self.rounds} must be 1 or more, {_MAX_ROUNDS} at most")
        if not 0 < self.timeout_s <= threading.TIMEOUT_MAX:  # Python's limit
            raise PowercutError(
                f"timeout: {self.timeout_s:g} must be a number of seconds above 0, "
                f"{threading.TIMEOUT_MAX:.0f} at most"
            )

    def without(self, *calls: str) -> Experiment:
        """Returns the experiment with these calls taken out, each named "WHAT SITE"."""
        settings = replace(self.settings, without=(*self.settings.without, *calls))
        return replace(self, settings=settings)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[Medium | None]:
        """Yields the medium to copy for each try, None if empty. Raises `PowercutError`."""
        with contextlib.ExitStack() as until:
            for starter in filter(None, (self.commands, self.starter)):
                until.callback(starter.close)
            yield until.enter_context(self._template())

    @contextlib.contextmanager
    def _template(self) -> Iterator[Medium | None]:
        if not self.prepare:
            yield None
            return
        # Folders with fixed paths are made only for the tries, not for the template.
        with new_medium(self.base) as template:
            if self.under:
                raise PowercutError("prepare: works on {medium} alone, and not with folders under")
            problem = self._command_problem("prepare", template.fill(self.prepare))
            if problem is not None:
                raise PowercutError(f"prepare: {problem}")
            yield template

    def rehearse(self, template: Medium | None) -> Record:
        """Runs the program without a cut, and returns a record of its calls.

        Raises `PowercutError` if the program fails, uses no medium or changes it in a way that
        can't be followed, or if the medium doesn't pass the recovery's check.
        """
        with new_medium(self.base, self.under, template) as medium:
            before = Folders(medium.roots)
            status = self._run(medium, Moment(), record=True)
            if status != 0:
                raise PowercutError(
                    f"without a power cut, {self.program[0]} {_ended(status)}: {_tail(medium)}"
                )
            path = medium.session / "record.json"
            has_record = path.exists()
            if not has_record:
                self._refuse_unrecorded_program(medium)
            check_changes_are_followed(
                before, template.roots if template else None, path, self.program[0]
            )
            if not has_record:
                raise PowercutError(
                    f"{self.program[0]} changed nothing in {{medium}}: give it the folder's path, "
                    "as in `-- PROGRAM {medium}/file`, or name its folders with --under"
                )
            problem = self._recovery_problem(medium)
            if problem is not None:
                raise PowercutError(f"without a power cut, the recovery's check fails: {problem}")
            record = read_record(path)
            unknown = {*self.settings.without} - {site.name for site in record.sites}
            if unknown:
                raise PowercutError(
                    f"without: {', '.join(sorted(unknown))}: no such call; --list shows all"
                )
            return record

    def _refuse_unrecorded_program(self, medium: Medium) -> None:
        if is_static(self.program[0], {**os.environ, **self.environment}):
            raise PowercutError(
                f"{self.program[0]}: is statically linked, so the library that follows it can't be "
                "loaded: link it dynamically (without -static)"
            )
        if (medium.session / "owner").exists():
            raise PowercutError(
                f"{self.program[0]}: the process that uses {{medium}} doesn't reach its end: "
                "let it return from main() or call exit(), and let its parent wait for it"
            )

    def cut(self, moments: Sequence[Moment], template: Medium | None) -> Outcome:
        """Cuts the power at each of these moments, one after another on one medium, and checks."""
        with new_medium(self.base, self.under, template) as medium:
            outcome = Outcome(moments[0], "ended")
            for number, moment in enumerate(moments):
                if number:
                    medium.renew()
                outcome = self._cut(medium, moment)
                if outcome.is_bad:
                    break
            return outcome

    def _cut(self, medium: Medium, moment: Moment) -> Outcome:
        before = Folders(medium.roots)
        status = self._run(medium, moment, record=False)
        cut = apply_cut(before, medium.session)
        if cut is None and status != 0:
            message = f"{_ended(status)}: {_tail(medium)}"
            return Outcome(moment, "broke", None, medium.with_placeholders(message))
        if cut is not None:
            names = tuple(medium.with_placeholders(name) for name in cut.lost_names)
            cut = replace(cut, lost_names=names)
        problem = self._recovery_problem(medium)
        if problem is not None:
            return Outcome(moment, "failed", cut, medium.with_placeholders(problem))
        return Outcome(moment, "passed" if cut else "ended", cut)

    def _run(self, medium: Medium, moment: Moment, *, record: bool) -> int:
        argv = medium.fill(self.program)
        preload = ":".join(filter(None, [str(library()), os.environ.get("LD_PRELOAD", "")]))
        env = {"PYTHONHASHSEED": "0", **os.environ, **self.environment, "LD_PRELOAD": preload}
        env |= self.settings.environment(medium.roots, medium.session, moment, record=record)
        try:
            with medium.output.open("ab") as output:
                status = self._status_of(self.starter or self.commands, argv, env, output)
        except OSError as error:
            raise PowercutError(f"{argv[0]}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired:
            raise PowercutError(
                f"{shell.join(argv)}: still running after {self.timeout_s:g} s; --timeout sets more"
            ) from None
        complaint = medium.session / "complaint"
        if complaint.exists():  # perhaps a child's, whose status was ignored
            complaint_text = complaint.read_text(errors="replace")
            no_room = f"{self.base}: has no room for what powercut keeps; --medium names another"
            raise PowercutError(f"{argv[0]}: {complaint_text}" if complaint_text else no_room)
        return status

    def _recovery_problem(self, medium: Medium) -> str | None:
        if self.recovery is None:
            return None
        return self.recovery.check(medium, partial(self._command_problem, "recover"))

    def _command_problem(self, name: str, argv: Sequence[str]) -> str | None:
        """Runs a command that is never cut. Returns how it failed, or None. Raises `PowercutError`
        if it can't be run.
        """
        with tempfile.TemporaryFile() as output:
            try:
                status = self._status_of(self.commands, argv, os.environ, output)
            except OSError as error:
                raise PowercutError(f"{name}: {argv[0]}: {error.strerror or error}") from error
            except subprocess.TimeoutExpired:
                return f"{shell.join(argv)}: still running after {self.timeout_s:g} s"
            if status == 0:
                return None
            output.seek(0)
            text = output.read().decode(errors="replace").strip()[-_TAIL_CHARACTERS:]
        return f"{_ended(status)}" + (f": {text}" if text else "")

    def _status_of(
        self,
        starter: Forks,
        argv: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes],
    ) -> int:
        """Runs a program to its end, then ends all processes that it left: the power is gone for
        its children too.
        """
        process = starter.start(argv, environment, output.fileno(), output.fileno())
        try:
            with killable_by_pool(process.kill):
                return process.wait(self.timeout_s)
        finally:
            process.end()

    def replay_command(self, moments: Sequence[Moment]) -> str:
        """Returns a one-line shell command that repeats these cuts."""
        words = [f"{name}={shell.quote(value)}" for name, value in self.environment.items()]
        words += [f"{shell.quote(sys.executable)} -m powercut"]
        words += [_moment_option(moment) for moment in moments]
        settings, plain = self.settings, CutSettings()
        options = {
            "--rounds": (self.rounds, Experiment.rounds),
            "--points": (",".join(settings.points), ",".join(plain.points)),
            "--names": (settings.names, plain.names),
            "--atomic": (settings.atomic_bytes, plain.atomic_bytes),
            "--site-frames": (settings.site_frames, plain.site_frames),
            "--medium": (shell.quote(str(self.base)), shell.quote(str(default_base()))),
            "--timeout": (f"{self.timeout_s:g}", f"{Experiment.timeout_s:g}"),
        }
        words += [f"{name} {own}" for name, (own, default) in options.items() if own != default]
        words += [f"--without {shell.quote(call)}" for call in settings.without]
        words += [f"--under {shell.quote(str(path))}" for path in self.under]
        if self.prepare:
            words.append(f"--prepare {shell.quote(shell.join(self.prepare))}")
        if self.recovery:
            words.append(f"--recover {self.recovery.as_argument()}")
        words += ["--", shell.join(self.program)]
        remark = self.recovery.remark() if self.recovery else ""
        return " ".join([*words, f"# {remark}"] if remark else words)


def _moment_option(moment: Moment) -> str:
    when = f"--at {moment.point}" if moment.point else f"--after-us {moment.after_us}"
    return f"{when} --seed {moment.seed}"


def _tail(medium: Medium) -> str:
    return medium.output.read_text(errors="replace").strip()[-_TAIL_CHARACTERS:]


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
