"""A program of the user's as a scenario's workload: its command, its files, and its output.

`scenarios/README.md` documents all three for the authors of such programs.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from string import Formatter
from typing import Annotated, Any, Final

from embstore.options import TIER_KINDS, StorageType
from pmemlab.machines.copying import owned_by_root
from pmemlab.machines.protocol import CRASH_STACKS_ENVIRONMENT, Machine
from pmemlab.scenarios.document import Scenario, Workload
from pmemlab.schema import AnyNumber, Document, FieldError, File, MaybeEmpty, Must, Positive, Text
from pmemlab.topology import Topology
from pmemlab.workloads.witness_protocol import ANSWER, LOOK_REQUEST, QUESTION

__all__ = [
    "RowSearch",
    "check_program",
    "pack_program",
    "program_command",
    "read_program_run",
]

_PYTHON: Final = ("python", "python3")
_STORAGE_TYPE: Final = "storage_type"
_LOOK_LIMIT_S: Final = 300.0
# In the folder that the files are copied to; an environment variable gives the program its path.
_LOOK_FOLDER: Final = ".pmemlab"


def check_program(workload: Workload, topology: Topology, folder: Path, compared: bool) -> None:
    """Raises `FieldError` for a command or files that can't be used, by fields of the workload.

    folder: the scenario's. compared: whether the command also runs on another storage type.
    """
    if workload.arguments or workload.rated:
        raise FieldError("is for name: tables and wdl; a command has them in itself", "arguments")
    there_are = _placeholder_values(topology, "")
    used = set()
    for index, word in enumerate(workload.command):
        try:
            parts = [*Formatter().parse(word)]
        except ValueError as error:
            raise FieldError(f"{word!r} can't be used: {error}", f"command[{index}]") from None
        for _, name, how, conversion in parts:
            if name is None:
                continue
            if name not in there_are or how or conversion:
                raise FieldError(
                    f"{word!r}: {{{name}}} is no place; there are {', '.join(there_are)}. "
                    "For a brace, write two",
                    f"command[{index}]",
                )
            if there_are[name] is None:
                raise FieldError(
                    f"{word!r}: topology {topology.name} has no {name}", f"command[{index}]"
                )
            used.add(name)
    if compared and _STORAGE_TYPE not in used:
        raise FieldError(
            f"has no {{{_STORAGE_TYPE}}}: it can't be run again on the storage type that "
            "expect.identical_to names",
            "command",
        )
    for index, name in enumerate(workload.files):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not os.path.exists(folder / name):  # noqa: PTH110
            raise FieldError(
                f"{name!r} must be a file or folder beside the scenario, in {folder}",
                f"files[{index}]",
            )


def program_command(
    workload: Workload, storage_type: str, python: str, topology: Topology, folder: str
) -> list[str]:
    """Returns the command as it runs in the machine, in the folder that its files were copied to.

    python, topology: the machine's.
    """
    placeholders = _placeholder_values(topology, storage_type)
    program, *words = (word.format(**placeholders) for word in workload.command)
    environment = f"PMEMLAB_LOOK={folder}/{_LOOK_FOLDER}"
    command = [python if program in _PYTHON else program, *words]
    return ["env", f"--chdir={folder}", environment, *command]


def pack_program(scenario: Scenario, archive: tarfile.TarFile) -> None:
    """Packs the program's files, by their paths below the scenario's folder, for `unpack`."""
    folder = scenario.path.parent
    look = tarfile.TarInfo(_LOOK_FOLDER)
    look.type, look.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(look)
    for name in dict.fromkeys((*_named_files(scenario.workload, folder), *scenario.workload.files)):
        archive.add(folder / name, name, filter=_without_bytecode)


def _named_files(workload: Workload, folder: Path) -> Iterator[str]:
    """Yields the words of the command that are relative names of files beside the scenario."""
    for word in workload.command:
        path = PurePosixPath(word)
        # Not `Path.is_file`, which raises for a text too long for a name, as in `sh -c`.
        is_file = os.path.isfile(folder / word)  # noqa: PTH113
        if is_file and not path.is_absolute() and ".." not in path.parts:
            yield word


def _without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    is_compiled = PurePosixPath(member.name).name == "__pycache__"
    return None if is_compiled else owned_by_root(member)


def _placeholder_values(topology: Topology, storage_type: str) -> dict[str, str | None]:
    """Returns the values of words in braces; None for a place that the topology lacks."""
    pmem, ssd = topology.pmem, topology.ssd
    return {
        _STORAGE_TYPE: storage_type,
        "pmem": pmem.path,
        "pmem_size": str(pmem.size_bytes) if pmem.size_bytes else None,
        "nodes": ",".join(map(str, pmem.nodes)) or None,
        "ssd": ssd.path if ssd else None,
    }


class RowSearch:
    """Looks for a program's rows when the program prints that its rows can be looked for.

    The looking process is the lab's, and its findings go to a place of the lab's. The program says
    only what to look for, and where.
    """

    def __init__(self, machine: Machine, folder: str) -> None:
        """folder: the folder with the copies of the program's files."""
        self._machine = machine
        self._folder = f"{folder}/{_LOOK_FOLDER}"
        self.findings: str | None = None
        """JSON, a list with an entry for each claim; None if the program never asked."""

    def on_line(self, line: str) -> None:
        if line.strip() != LOOK_REQUEST:
            return
        files = [f"{self._folder}/{name}" for name in (QUESTION, ANSWER)]
        command = [self._machine.python, "-S", "-m", "pmemlab.workloads.witness", *files]
        done = self._machine.run(command, env=CRASH_STACKS_ENVIRONMENT, timeout=_LOOK_LIMIT_S)
        self.findings = done.stdout


_NonNegative = Annotated[int, Must("a whole number of at least 0", lambda value: value >= 0)]


@dataclass(frozen=True)
class _TierRows(Document, open=True):
    rows: _NonNegative
    bytes: _NonNegative
    capacity_rows: _NonNegative | None = None
    is_pmem: Annotated[bool, Must("true, false or null")] | None = None


@dataclass(frozen=True)
class _Stats(Document, open=True):
    hits: _NonNegative = 0
    misses: _NonNegative = 0
    promotions: _NonNegative = 0
    demotions: _NonNegative = 0
    tiers: AnyNumber[_TierRows] = ()


@dataclass(frozen=True)
class _Table(Document, open=True):
    name: Text
    exported_rows: _NonNegative
    tiers: AnyNumber[_TierRows]
    stats: _Stats = field(default_factory=_Stats)


@dataclass(frozen=True)
class _ProgramRun(Document, open=True):
    """The document on a program's last line. `scenarios/README.md` documents the fields."""

    samples: Annotated[int, Must("a whole number above 0", lambda value: value > 0)]
    seconds: Positive
    losses: Annotated[tuple[Any, ...], Must("a list of losses, one a step")] = ()
    lookups_per_s: Positive | None = None
    auc: Annotated[float, Must("a number from 0 to 1", lambda auc: 0 <= auc <= 1)] | None = None
    state_sha256: MaybeEmpty = ""
    tables: AnyNumber[_Table] = ()

    def check(self) -> None:
        for index, loss in enumerate(self.losses):
            if not math.isfinite(_number(loss)):
                raise FieldError(
                    f"must be a finite number, or the text that float.hex writes of one, not "
                    f"{loss!r}",
                    f"losses[{index}]",
                )
        if self.samples > sys.float_info.max * min(1.0, self.seconds):
            raise FieldError(f"are more than {self.seconds:g} seconds can have", "samples")


def read_program_run(
    stdout: str, findings: str | None, storage_type: str, error: Callable[[str], Exception]
) -> dict[str, Any]:
    """Returns a run from a program's output, in the form that the lab's workloads print.

    findings: from `RowSearch`. They alone say where rows lie; the names of tiers come from the
        storage type. Raises the result of `error` for a message.
    """
    last = (stdout.strip().splitlines() or ["(it printed nothing)"])[-1]
    if not last.startswith(("{", "[")):
        raise error(f"the program's last line is no JSON document: {last}")
    printed = File.from_json_text(Path("the program's last line"), last, error).read(_ProgramRun)
    run: dict[str, Any] = {
        "storage_type": storage_type,
        "losses": list(printed.losses),
        "loss": _number(printed.losses[-1]) if printed.losses else None,
        "auc": printed.auc,
        "samples_per_s": printed.samples / printed.seconds,
        "state_sha256": printed.state_sha256,
        "tables": [],
        "cold": None,
    }
    if printed.lookups_per_s is not None:
        run["lookups_per_s"] = printed.lookups_per_s
    tier_findings = _findings_by_tier(
        findings, sum(len(table.tiers) for table in printed.tables), error
    )
    kinds = TIER_KINDS[StorageType[storage_type]]
    for table in printed.tables:
        if len(table.tiers) != len(kinds):
            raise error(
                f"table {table.name} has {len(table.tiers)} tiers; {storage_type} has {len(kinds)}"
            )
        levels = table.stats.tiers or table.tiers
        if len(levels) != len(kinds):
            raise error(f"table {table.name}: stats are of {len(levels)} tiers, not {len(kinds)}")
        run["tables"].append(
            {
                "name": table.name,
                "exported_rows": table.exported_rows,
                "stats": {
                    **{name: getattr(table.stats, name) for name in ("hits", "misses")},
                    **{name: getattr(table.stats, name) for name in ("promotions", "demotions")},
                    "tiers": [
                        {"name": kind.value, **_counts(level), "capacity_rows": level.capacity_rows}
                        for kind, level in zip(kinds, levels, strict=True)
                    ],
                },
                "tiers": [
                    {
                        "name": kind.value,
                        **_counts(tier),
                        "is_pmem": tier.is_pmem,
                        **next(tier_findings),
                    }
                    for kind, tier in zip(kinds, table.tiers, strict=True)
                ],
            }
        )
    return run


def _counts(level: _TierRows) -> dict[str, int]:
    return {"rows": level.rows, "bytes": level.bytes}


def _number(loss: object) -> float:
    """Returns a loss, a number or a text of `float.hex`, as a number; NaN for anything else."""
    try:
        return float.fromhex(loss) if isinstance(loss, str) else float(loss)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _findings_by_tier(
    findings: str | None, count: int, error: Callable[[str], Exception]
) -> Iterator[Mapping[str, Any]]:
    """Returns the findings for each tier, which are empty if the program never asked."""
    if findings is None:
        nothing: dict[str, Any] = {
            "nodes": {},
            "file": None,
            "devices": {},
            "sought": 0,
            "found": 0,
        }
        return iter([nothing] * count)
    try:
        answers: Any = json.loads(findings)
    except ValueError:
        answers = []
    if isinstance(answers, dict):
        raise error(f"rows could not be looked for: {answers['error']}")
    if len(answers) != count:
        raise error(
            f"rows were looked for in {len(answers)} tiers; the program's tables have {count}"
        )
    return iter(answers)
