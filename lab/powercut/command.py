"""The command `powercut`: its options and its output."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pmemlab.command_end import exit_status_of, is_environment_error
from powercut import plan, shell
from powercut.campaign import Results, default_jobs, run_tries, try_mutation
from powercut.errors import PowercutError
from powercut.experiment import CommandRecovery, Experiment, Outcome
from powercut.frames import short_stack
from powercut.medium import Medium, default_base
from powercut.progress import progress_bar
from powercut.record import Record
from powercut.settings import POINT_KINDS, CutSettings, Moment

__all__ = ["main"]

_USAGE = "powercut [options] --recover COMMAND -- PROGRAM [ARGUMENT ...]"
_DESCRIPTION = """\
Cut the power of PROGRAM: everything that it stored to persistent memory, or wrote to files, and did
not make durable may be lost, each part by chance. Then run COMMAND, which must end with 0.

{medium} in PROGRAM, COMMAND and --prepare stands for the folder whose files are followed, made
afresh for each try; {output} for a file with PROGRAM's output. PROGRAM needs no recompilation.
"""
_EPILOG = """\
  powercut --recover './check {medium}/log {output}' -- ./append {medium}/log 20
  powercut --list -- ./append {medium}/log 20
  powercut --mutate --recover './check {medium}/log {output}' -- ./append {medium}/log 20
"""
_SHOWN = 10
_TOO_MANY = 1 << 62  # Python can't count to twice as many
_LOG_WIDTH = 140  # a log has no width


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every recovery passed, 1 if one failed, 2 if nothing could be tried."""
    own, program = _split_at_double_dash(sys.argv[1:] if argv is None else argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup
            # Raises an exception, so that media are removed on the way out.
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return exit_status_of(lambda: _powercut(_parser().parse_args(own), program))
    except (PowercutError, OSError) as error:
        if isinstance(error, OSError) and not is_environment_error(error):
            raise
        print(f"powercut: {error}", file=sys.stderr)
        return 2


def _split_at_double_dash(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns powercut's own arguments, and those after the first `--`."""
    position = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:position]), list(argv[position + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="powercut",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--recover",
        metavar="COMMAND",
        help="command that checks what a power cut left; not needed with --list",
    )
    parser.add_argument(
        "--prepare",
        metavar="COMMAND",
        help="command that fills {medium} at first; it is never cut",
    )

    when = parser.add_argument_group(
        "when the power goes (default: 200 moments, those that differ most first)"
    )
    which = when.add_mutually_exclusive_group()
    which.add_argument(
        "--tries", type=_positive, default=200, metavar="N", help="number of moments (default: 200)"
    )
    which.add_argument("--every", action="store_true", help="every cut point")
    which.add_argument(
        "--at", type=_positive, action="append", metavar="K", help="the K-th cut point only"
    )
    which.add_argument(
        "--moments", type=_positive, metavar="N", help="N random moments, at any time"
    )
    which.add_argument(
        "--after-us",
        type=_positive,
        metavar="US",
        help="one moment, US microseconds after the first use of {medium}",
    )
    when.add_argument("--seed", type=int, metavar="S", help="seed of the first try (default: 0)")
    when.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="seeds for each point of --every or --at (default: 1)",
    )
    when.add_argument(
        "--points",
        metavar="KINDS",
        help=f"kinds of calls that are cut points (default: {','.join(POINT_KINDS)})",
    )
    when.add_argument(
        "--rounds",
        type=_positive,
        default=1,
        metavar="N",
        help="number of runs, cuts and checks one after another on one medium (default: 1)",
    )

    what = parser.add_argument_group("what is done")
    instead = what.add_mutually_exclusive_group()
    instead.add_argument(
        "--list", action="store_true", help="cut nothing; print cut points and useless calls"
    )
    instead.add_argument(
        "--mutate",
        action="store_true",
        help="take out each flush, drain and sync in turn, and check that a try fails",
    )
    what.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="'WHAT SITE'",
        help="calls to take out, by a name that --list prints",
    )
    what.add_argument(
        "--site-frames",
        type=_positive,
        default=1,
        metavar="N",
        help="return addresses that tell call sites apart (default: 1)",
    )

    medium = parser.add_argument_group("the medium")
    medium.add_argument(
        "--medium",
        type=Path,
        metavar="DIR",
        help="folder in which {medium} is made (default: /dev/shm)",
    )
    medium.add_argument(
        "--under",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="another folder to follow, made and removed for each try; for fixed paths",
    )
    medium.add_argument(
        "--names",
        choices=("independent", "ordered"),
        default="independent",
        help="how changes of names are lost: each by itself, as POSIX allows, or in order, as "
        "ext4 does (default: independent)",
    )
    medium.add_argument(
        "--atomic",
        type=int,
        choices=(8, 64),
        default=8,
        help="bytes of memory that are never torn (default: 8)",
    )

    run = parser.add_argument_group("how it is run")
    run.add_argument(
        "--jobs", type=_positive, metavar="N", help="tries at a time (default: one per CPU)"
    )
    run.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit of PROGRAM and COMMAND (default: 60)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < _TOO_MANY:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of 1 or more, below 2^62")
    return int(text)


def _powercut(arguments: argparse.Namespace, program: Sequence[str]) -> int:
    _check_options(arguments)
    experiment = _experiment(arguments, program)
    console, messages = Console(highlight=False), Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    with experiment.prepared() as template:
        if arguments.list:
            with messages.status("running it without a cut"):
                record = experiment.rehearse(template)
            _print_record(console, record)
            return 0
        if experiment.recovery is None:
            raise PowercutError("give --recover COMMAND, or --list")
        if _is_replay(arguments):
            return _replay(console, experiment, arguments, template)
        with messages.status("running it without a cut"):
            record = experiment.rehearse(template)
        tries = _tries(arguments, record)
        jobs = arguments.jobs or default_jobs(experiment)
        if arguments.mutate:
            if not record.sites:
                raise PowercutError("--mutate: the program makes no call that could be taken out")
            return _mutate(console, messages, experiment, record, tries, template, jobs)
        with progress_bar(messages, "power cuts", tries.count) as show:
            results = run_tries(
                experiment,
                tries,
                template,
                jobs=jobs,
                on_outcome=lambda outcome: show(outcome.is_bad),
            )
    _print_results(console, record, results)
    return 1 if results.failures else 0


def _experiment(arguments: argparse.Namespace, program: Sequence[str]) -> Experiment:
    if not program:
        raise PowercutError("give the program after `--`")
    recover = shell.words("--recover", arguments.recover)
    return Experiment(
        program=tuple(program),
        recovery=CommandRecovery(recover) if recover else None,
        settings=CutSettings(
            points=tuple(arguments.points.split(",")) if arguments.points else POINT_KINDS,
            names=arguments.names,
            atomic_bytes=arguments.atomic,
            without=tuple(arguments.without),
            site_frames=arguments.site_frames,
        ),
        prepare=shell.words("--prepare", arguments.prepare),
        under=tuple(arguments.under),
        base=arguments.medium or default_base(),
        timeout_s=arguments.timeout,
        rounds=arguments.rounds,
    )


def _is_replay(arguments: argparse.Namespace) -> bool:
    chosen = arguments.at or arguments.after_us
    is_one_try = arguments.seed is not None and not arguments.seeds and not arguments.mutate
    return bool(chosen) and is_one_try


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises `PowercutError` for an option without effect beside the others."""
    one_by_one = arguments.at or arguments.after_us or arguments.every
    of_cuts = ("every", "at", "moments", "after_us", "seeds")
    chosen = [name for name in of_cuts if getattr(arguments, name)]
    if arguments.list and chosen:
        raise PowercutError(f"--{chosen[0].replace('_', '-')}: --list cuts nothing; leave it out")
    if arguments.seeds and not one_by_one:
        raise PowercutError("--seeds: is for --every, --at and --after-us; leave it out")
    if arguments.rounds > 1 and (one_by_one or arguments.moments) and not _is_replay(arguments):
        raise PowercutError("--rounds: is for --tries, whose points it draws; leave it out")


def _replay(
    console: Console, experiment: Experiment, arguments: argparse.Namespace, template: Medium | None
) -> int:
    points = arguments.at or [0]
    moments = [Moment(point, arguments.seed, arguments.after_us or 0) for point in points]
    if experiment.settings.without:
        experiment.rehearse(template)  # reads which calls there are
    outcomes: list[Outcome] = []
    run_tries(experiment, [moments], template, jobs=1, on_outcome=outcomes.append)
    (outcome,) = outcomes
    if outcome.cut is not None:
        cut_text = outcome.cut.text(most_names=len(outcome.cut.lost_names))
        console.print(f"power cut {cut_text}", markup=False)
    else:
        console.print("the program ended before the power went")
    console.print(f"{outcome.verdict}: {outcome.message}".rstrip(": "), markup=False)
    return 1 if outcome.is_bad else 0


def _tries(arguments: argparse.Namespace, record: Record) -> plan.Tries:
    seed, seeds = arguments.seed or 0, arguments.seeds or 1
    if arguments.after_us:
        return plan.at_points([0], seeds, seed, after_us=arguments.after_us)
    if arguments.at:
        if max(arguments.at) > record.point_count:
            raise PowercutError(
                f"--at {max(arguments.at)}: the run has {record.point_count} cut points"
            )
        return plan.at_points(arguments.at, seeds, seed)
    if arguments.moments:
        return plan.random_moments(record, arguments.moments, seed)
    if arguments.every:
        return plan.every_point(record, seeds, seed)
    return plan.sampled(record, arguments.tries, arguments.rounds, seed)


def _print_results(console: Console, record: Record, results: Results) -> None:
    if results.failures:
        console.print(Text(results.failures_text(_SHOWN)), soft_wrap=True)
    useless = sum(use.useless_calls for use in record.useless)
    if useless:
        console.print(f"{useless} calls made durable what already was: --list shows them")
    early = f", {results.ended_early} ended before" if results.ended_early else ""
    verdict = (
        f"[red]{len(results.failures)} of {results.tried} power cuts failed"
        if results.failures
        else f"[green]{results.tried} power cuts, all recovered"
    )
    console.print(
        f"{verdict}[/]{early}; {record.point_count} cut points, {len(record.places)} distinct by "
        f"call stack, {len(results.stacks)} of them cut",
        soft_wrap=True,
    )


def _print_useless(console: Console, record: Record) -> None:
    if not record.useless:
        return
    table = Table("useless", "of calls", "clean lines", "where", title="work that changed nothing")
    for use in record.useless:
        lines = f"{use.clean_lines} of {use.lines}" if use.lines else ""
        table.add_row(
            f"{use.useless_calls} {use.function} ({use.what})",
            str(use.calls),
            lines,
            Text(short_stack(use.frames)),
        )
    console.print(table)


def _print_record(console: Console, record: Record) -> None:
    places = Table("cut points", "call", "where", title=f"{record.point_count} cut points")
    for cut_place in record.places:
        place = Text(short_stack(cut_place.frames))
        places.add_row(
            str(len(cut_place.points)), f"{cut_place.function} ({cut_place.kind})", place
        )
    console.print(places)
    sites = Table(
        "calls", "call", "name for --without", title="call sites that make things durable"
    )
    for site in record.sites:
        sites.add_row(str(site.calls), site.function, Text(site.name))
    console.print(sites)
    _print_useless(console, record)


def _mutate(
    console: Console,
    messages: Console,
    experiment: Experiment,
    record: Record,
    tries: plan.Tries,
    template: Medium | None,
    jobs: int,
) -> int:
    name = Column("taken out", overflow="fold")
    table = Table(name, "calls", "shown by try", "as", title="mutations")
    survivors = 0
    with progress_bar(messages, "mutations", len(record.sites)) as show:
        for site in record.sites:
            result = try_mutation(experiment, site, tries, template, jobs=jobs)
            survivors += result.failure is None
            show(result.failure is None)
            shown = f"{result.tried}" if result.failure else f"[red]none of {result.tried}"
            message = result.failure.outcome.message if result.failure else ""
            last_line = message.splitlines()[-1] if message else ""
            table.add_row(Text(site.name), str(site.calls), shown, Text(last_line))
    console.print(table)
    total = len(record.sites)
    console.print(
        f"[red]{survivors} of {total} can be taken out and no cut shows it"
        if survivors
        else f"[green]all {total} are needed, and cuts show it"
    )
    return 1 if survivors else 0
