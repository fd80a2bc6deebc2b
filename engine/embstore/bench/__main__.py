"""python -m embstore.bench SUITE: tables on the terminal, JSON in a file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

try:
    from rich.console import Console
    from rich.progress import Progress, TaskID
except ImportError:  # the engine itself needs numpy alone
    sys.exit("embstore.bench needs more packages: pip install 'embstore[bench]'")

from embstore.bench import (
    cluster_suite,
    durability_suite,
    gpu_suite,
    keras_suite,
    memory_suite,
    peers_suite,
    rows_suite,
    tiers_suite,
    torch_suite,
)
from embstore.bench.arguments import add_arguments
from embstore.bench.arguments import options as options_of
from embstore.errors import (
    InvalidArgumentError,
    MissingLibraryError,
    StorageError,
    StoreFullError,
)
from embstore.printing import print_table

SUITES = {
    "rows": rows_suite,
    "tiers": tiers_suite,
    "peers": peers_suite,
    "memory": memory_suite,
    "durability": durability_suite,
    "gpu": gpu_suite,
    "cluster": cluster_suite,
    "keras": keras_suite,
    "torch": torch_suite,
}
DEFAULT_SUITE = "rows"


def main(arguments: list[str] | None = None) -> None:
    suite, parsed = _parse(sys.argv[1:] if arguments is None else arguments)
    options = options_of(suite.OPTIONS, parsed)
    try:
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=suite.advance_count(options))
            report = suite.run(options, _Bar(progress, task))
    except (InvalidArgumentError, MissingLibraryError, StorageError, StoreFullError) as error:
        sys.exit(str(error))
    except MemoryError as error:
        sys.exit(f"too large for this computer's memory: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    # Writes the file first: the reader of stdout may have gone.
    document = {"suite": parsed.suite, "options": asdict(options), **report.document}
    problem = None if parsed.json is None else _write_json(parsed.json, document)
    try:
        for table in report.tables:
            print_table(table)
        if problem is not None:
            sys.exit(problem)
        if parsed.json is not None:
            print(f"written: {parsed.json}")
        sys.stdout.flush()
    except BrokenPipeError:
        # Discards the rest of the buffer; otherwise the interpreter prints an error at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.exit(1)


def _write_json(path: Path, document: dict[str, object]) -> str | None:
    """Replaces the file atomically; returns an error message or None.

    A device, a pipe, and a file that stdout or stderr is connected to aren't replaced: the text is
    written to them.
    """
    text = json.dumps({**document, "machine": _machine()}, indent=1, default=os.fspath) + "\n"
    try:
        _write_whole(path, text)
    except OSError as error:
        return f"--json {path}: can't be written: {error.strerror}"
    return None


def _write_whole(path: Path, text: str) -> None:
    stream = _standard_stream_at(path)
    if stream is not None:
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                file.flush()  # keeps the order of the output
        with open(stream, "w", encoding="utf-8", closefd=False) as output:
            output.write(text)
        return
    target = path.resolve()
    # A pipe behind /dev/fd resolves to "pipe:[…]", which is no path.
    if path.exists() and not target.is_file():
        path.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _standard_stream_at(path: Path) -> int | None:
    """Returns the descriptor of stdout or stderr if it is connected to the file at `path`, else
    None.
    """
    for descriptor in (1, 2):
        try:
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except OSError:  # no file there yet, or the stream is closed
            continue
    return None


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def begin(self, task: str) -> None:
        self._progress.update(self._task, description=task)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def show_result(self, result: str) -> None:
        self._progress.console.print(result, highlight=False, soft_wrap=True)


def _parse(arguments: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m embstore.bench",
        description=__doc__,
        epilog=f"Without a suite: {DEFAULT_SUITE}, with its options.",
    )
    suites = parser.add_subparsers(dest="suite", metavar="SUITE", required=True)
    for name, suite in SUITES.items():
        first_line, *_ = (suite.__doc__ or "").splitlines()
        description = first_line.partition(": ")[2]
        suite_parser = suites.add_parser(name, help=description, description=description)
        add_arguments(suite_parser, suite.OPTIONS)
        suite_parser.add_argument(
            "--json", type=Path, metavar="FILE", help="file for the figures, as JSON"
        )
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = [DEFAULT_SUITE, *arguments]
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:  # by the suite's parser, which shows the suite's arguments
        suites.choices[parsed.suite].error(f"unrecognized arguments: {' '.join(unknown)}")
    if parsed.json is not None and not parsed.json.parent.is_dir():
        parser.error(f"--json: {parsed.json.parent} is no directory")
    if parsed.json is not None and parsed.json.is_dir():
        parser.error(f"--json: {parsed.json} is a directory; give a file")
    return SUITES[parsed.suite], parsed


def _machine() -> dict[str, object]:
    return {"cpu": _cpu_name(), "cpus": os.cpu_count(), "python": platform.python_version()}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    # Raises an exception, so that files are removed on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    main()
