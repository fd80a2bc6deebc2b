"""Checksums of tables' contents, and evidence of where their rows lie, found by another process."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.errors import LabError
from pmemlab.machines.guest.prepared import VARIABLE, prepared_command
from pmemlab.placement import unmap_pages_of
from pmemlab.workloads.witness import EMULATED_GPU, Claim, Finding, change_rows, files_in

__all__ = [
    "TableEvidence",
    "TierEvidence",
    "ask_witness",
    "checkpoint_sha256",
    "examine_tables",
    "forget_cached_pages",
    "parse_findings",
    "state_sha256",
]

Keys = NDArray[np.int64]

_ROWS_PER_RUN: Final = 64
_MIN_ROWS: Final = 2
_MAX_CANDIDATES: Final = 10_000
_SEED: Final = 17
_PR_SET_PTRACER: Final = 0x59616D61
# A row with fewer different bytes, for example a row of zeros, could be found anywhere by chance.
_MIN_DIFFERENT_BYTES: Final = 6


@dataclass(frozen=True)
class TierEvidence:
    """Where the rows of one tier of a table really lay while the table was open.

    The engine reports name, rows, bytes (of the rows), mapped_bytes (rows and room for more), and
    is_pmem (libpmem's answer for the mapping; None without libpmem). Another process, the witness,
    saw nodes, file, devices, is_direct and gpu, as `Finding` describes them. sought: the number of
    exported rows that the engine says are in this tier and that the witness looked for. found: how
    many of them it found in the tier's file or memory, to the last bit. read_changed: after one bit
    of each sought row was changed in memory behind the engine's back, the number of rows that the
    engine read with that change; None if no bit was changed.
    """

    name: str
    rows: int
    bytes: int
    mapped_bytes: int
    is_pmem: bool | None
    nodes: dict[int, int]
    file: str | None
    devices: dict[str, int]
    is_direct: bool | None
    sought: int
    found: int
    gpu: str | None = None
    read_changed: int | None = None


@dataclass(frozen=True)
class TableEvidence:
    """Evidence of one table: the engine's counters, the number of exported rows, and where they
    lay.
    """

    name: str
    stats: dict[str, Any]
    exported_rows: int
    tiers: list[TierEvidence]


def ask_witness(claims: Sequence[Claim]) -> list[Finding]:
    """Have a child of this process look for rows. Raises LabError if the child fails."""
    question = {"pid": os.getpid(), "claims": [vars(claim) for claim in claims]}
    # -S: no installed packages, so no code of the engine
    command = [sys.executable, "-S", "-m", "pmemlab.workloads.witness"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if os.environ.get(VARIABLE):
        command, environment = prepared_command(command, sys.executable), dict(os.environ)
    witness = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    # Some kernels (Yama) let a process read only its descendants, unless the other process allows
    # it.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(witness.pid), 0, 0, 0)
    answer, problem = witness.communicate(json.dumps(question))
    if witness.returncode:
        last = (problem.strip().splitlines() or [f"status {witness.returncode}"])[-1]
        raise LabError(f"the process that looks for rows failed: {last}")
    return parse_findings(answer)


def parse_findings(answer: str) -> list[Finding]:
    """Parses the witness's output. Raises LabError if it reports an error."""
    answers = json.loads(answer)
    if isinstance(answers, dict):
        raise LabError(f"the process that looks for rows failed: {answers['error']}")
    names = {field.name for field in fields(Finding)}
    return [
        Finding(
            **{
                **{name: value for name, value in each.items() if name in names},
                "nodes": {int(node): count for node, count in each["nodes"].items()},
            }
        )
        for each in answers
    ]


def examine_tables(
    variables: Sequence[es.EmbeddingVariable],
    exports: Iterable[Mapping[str, NDArray[Any]]],
    ask: Callable[[Sequence[Claim]], list[Finding]] = ask_witness,
    *,
    search: bool = True,
) -> tuple[str, list[TableEvidence]]:
    """Return the SHA-256 of the tables' contents, and the evidence of where the rows lie.

    exports: each variable's export, consumed one at a time. ask: lets another process look for
    rows. search: False skips that; the evidence is then empty. Raises LabError if that process
    fails.

    REQUIRES: the variables are open and drained.
    """
    if not search:
        names = (variable.name for variable in variables)
        return state_sha256(zip(names, exports, strict=True)), []
    digest = hashlib.sha256()
    random = np.random.default_rng(_SEED)
    rows_a_table = max(_MIN_ROWS, _ROWS_PER_RUN // max(1, len(variables)))
    examined: list[tuple[es.EmbeddingVariable, Any, int, list[tuple[Claim, Keys]]]] = []
    for variable, export in zip(variables, exports, strict=True):
        _add_to_digest(digest, variable.name, export)
        stats = variable.stats()
        claims = _claims(
            variable, stats, export, random.permutation(export["keys"].size), rows_a_table
        )
        examined.append((variable, stats, export["keys"].size, claims))
    findings = iter(ask([claim for *_, claims in examined for claim, _ in claims]))
    tables = [
        TableEvidence(
            variable.name,
            dict(stats),
            exported_rows,
            [
                _tier_evidence(tier, claim, next(findings), _read_changed(variable, claim, keys))
                for tier, (claim, keys) in zip(stats["tiers"], claims, strict=True)
            ],
        )
        for variable, stats, exported_rows, claims in examined
    ]
    return digest.hexdigest(), tables


def _claims(
    variable: es.EmbeddingVariable,
    stats: Any,
    export: Mapping[str, NDArray[Any]],
    order: NDArray[np.int64],
    rows_a_table: int,
) -> list[tuple[Claim, Keys]]:
    """Returns the engine's claim for each tier, with a sample of the tier's rows and their keys."""
    tiers = stats["tiers"]
    # Partitions have the same tiers, one after the other; which of them has a key isn't known here.
    kinds = list(dict.fromkeys(tier["name"] for tier in tiers))
    rows: list[dict[tuple[str, ...], int]] = [{} for _ in tiers]
    if len(kinds) == len(tiers):
        candidates = order[:_MAX_CANDIDATES]
        where = variable.lookup_tier(export["keys"][candidates])
        for tier, of_tier in enumerate(rows):
            for row in _distinctive_rows(export, candidates[where == tier], 2 * rows_a_table):
                of_tier.setdefault(_parts(export, row), int(export["keys"][row]))
                if len(of_tier) == rows_a_table:
                    break
    return [
        (
            Claim(
                tuple(of_tier),
                address=tier["address"],
                length=tier["mapped_bytes"] if tier["address"] else 0,
                folder=None if tier["address"] else tier["path"],
                gpu=tier["gpu"],
            ),
            np.array([*of_tier.values()], np.int64),
        )
        for tier, of_tier in zip(tiers, rows, strict=True)
    ]


def _distinctive_rows(
    export: Mapping[str, NDArray[Any]], rows: NDArray[np.int64], at_a_time: int
) -> Iterator[int]:
    """Yields the rows with enough different bytes to be told from others. It checks `at_a_time`
    rows at a time, since an emulated machine would take long to check rows that the caller doesn't
    need.
    """
    for start in range(0, rows.size, at_a_time):
        some = rows[start : start + at_a_time]
        yield from some[_different_bytes(export, some) >= _MIN_DIFFERENT_BYTES].tolist()


def _read_changed(variable: es.EmbeddingVariable, claim: Claim, keys: Keys) -> int | None:
    """Returns how many of a claim's rows the table reads from the place in the emulated GPU's
    memory where the search finds them; None for other memory.

    A search would also find a copy there, or what a transfer left. So one bit of each row is
    changed, the rows are read, and the bit is changed back.
    """
    if claim.gpu != EMULATED_GPU or not keys.size:
        return None
    changes = change_rows(claim.rows)
    try:
        read = variable.lookup(keys, train=True)  # moves and counts nothing
    finally:
        for change in changes:
            change.undo()
    weights = [bytes.fromhex(parts[0]) for parts in claim.rows]
    expected = [bytes([row[0] ^ 1]) + row[1:] for row in weights]
    pairs = zip(read, expected, strict=True)
    return sum(int(row.tobytes() == bits) for row, bits in pairs)


def _part_names(export: Mapping[str, NDArray[Any]]) -> list[str]:
    """Returns the names of a row's weights and of what its optimizer keeps beside them."""
    return ["values", *(n for n in export if n not in ("keys", "values", "freqs", "versions"))]


def _parts(export: Mapping[str, NDArray[Any]], row: int) -> tuple[str, ...]:
    """Returns a row's weights, and what its optimizer keeps beside them, in hex."""
    return tuple(export[name][row].tobytes().hex() for name in _part_names(export))


def _different_bytes(
    export: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns how many different bytes the parts of each row have, (rows,) int64."""
    parts = [export[name][rows].view(np.uint8) for name in _part_names(export)]
    ordered = np.sort(np.concatenate(parts, axis=1), axis=1)
    changes: NDArray[np.int64] = np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    return changes + 1


def _tier_evidence(
    tier: Any, claim: Claim, finding: Finding, read_changed: int | None
) -> TierEvidence:
    return TierEvidence(
        **{name: tier[name] for name in ("name", "rows", "bytes", "mapped_bytes", "is_pmem")},
        **vars(finding),
        sought=len(claim.rows),
        read_changed=read_changed,
    )


def forget_cached_pages(variables: Iterable[es.EmbeddingVariable]) -> None:
    """Make the kernel drop the cached pages of the tables' files on disks, mapped or not.

    Later reads come from the medium. Raises OSError if the kernel refuses.
    """
    for variable in variables:
        for tier in variable.stats()["tiers"]:
            if tier["address"] or tier["path"] is None:
                continue
            unmap_pages_of(Path(tier["path"]))  # the kernel doesn't drop mapped pages
            for path in files_in(Path(tier["path"])):
                with path.open("rb") as file:
                    os.fsync(file.fileno())  # nor dirty pages
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def state_sha256(exports: Iterable[tuple[str, Mapping[str, NDArray[Any]]]]) -> str:
    """Return a SHA-256 in hex over variables' contents, to the last bit.

    exports: each variable's name, and its export.
    """
    digest = hashlib.sha256()
    for name, export in exports:
        _add_to_digest(digest, name, export)
    return digest.hexdigest()


def _add_to_digest(digest: Any, name: str, export: Mapping[str, NDArray[Any]]) -> None:
    for field, array in sorted(export.items()):
        digest.update(f"{name} {field} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)


def checkpoint_sha256(
    steps: int,
    variables: Iterable[es.EmbeddingVariable],
    dense: Mapping[str, NDArray[Any]] | None = None,
) -> str:
    """Return a SHA-256 in hex over a checkpoint's contents, to the last bit.

    steps: number of steps done. dense: the model's arrays that lie in no table.
    """
    others = {"steps": np.array(steps, np.int64), **(dense or {})}
    exports = ((variable.name, variable.export()) for variable in variables)
    return state_sha256(itertools.chain(exports, [("rest", others)]))
