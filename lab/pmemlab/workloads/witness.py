"""Looks for rows where an engine says they are, from another process than the engine's.

    python -m pmemlab.workloads.witness < QUESTION
    python -m pmemlab.workloads.witness QUESTION ANSWER

QUESTION and the printed answer are JSON: a list of `Claim` with the engine's pid, and a list of
`Finding`. With file names, the answer is also written to ANSWER, and each `Finding` has `sought`,
the number of different rows that were looked for; or the answer is {"error": ...}. All evidence
comes from the kernel: /proc/PID, move_pages(2), stat(2) and the files themselves. This module uses
only the standard library, since other imports take seconds on an emulated machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pmemlab.placement import ProcessMemory, device_number

__all__ = ["EMULATED_GPU", "Change", "Claim", "Finding", "change_rows", "files_in", "find_rows"]

EMULATED_GPU: Final = "emulated"
"""The engine's name of the GPU that it emulates in host memory."""

_READ_BYTES = 8 << 20
_PART_ALIGNMENT = 16
# The kernel's name of the emulated GPU's memory among a process's open files
# (engine/core/gpu/emulated/emulated_memory.cc).
_EMULATED_MEMORY = "/memfd:emulated device (deleted)"


@dataclass(frozen=True)
class Claim:
    """An engine's claim about where one tier's rows lie.

    rows: a sample, each row as its parts in hex: weights, then the optimizer's slots. Each part
    begins at a multiple of 16 bytes from the row's start; the bytes between parts don't matter.
    address, length: the tier's mapping; 0 if it has none. folder: the folder of a tier that keeps
    files and maps none. gpu: the engine's name of the GPU, for a tier in a GPU's memory.
    """

    rows: tuple[tuple[str, ...], ...]
    address: int = 0
    length: int = 0
    folder: str | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class Finding:
    """The witness's finding for one claim.

    nodes: NUMA node -> number of the mapping's touched pages on it. file: the mapped file, or the
    tier's folder. devices: "major:minor" of the device of each such file -> bytes that the files
    take there. is_direct: whether the process has files of the folder open, all of them with
    O_DIRECT (past the page cache); None for a tier that is mapped or on a GPU. gpu: `EMULATED_GPU`
    if the claim names that GPU and the process has such memory, which is then `file`. found: how
    many of the rows are there, to the last bit; in a mapping without a file, only touched pages are
    searched.
    """

    nodes: dict[int, int] = field(default_factory=dict)
    file: str | None = None
    devices: dict[str, int] = field(default_factory=dict)
    is_direct: bool | None = None
    gpu: str | None = None
    found: int = 0


class _Row(NamedTuple):
    """A row to look for. parts: (offset from the row's first byte, bytes), the longest first, as it
    is the rarest.
    """

    parts: tuple[tuple[int, bytes], ...]
    length: int

    @staticmethod
    def from_hex_parts(parts: Sequence[str]) -> _Row:
        placed, length = [], 0
        for part in map(bytes.fromhex, parts):
            length += -length % _PART_ALIGNMENT
            placed.append((length, part))
            length += len(part)
        return _Row(tuple(sorted(placed, key=lambda part: -len(part[1]))), length)

    def occurs_in(self, data: bytes) -> bool:
        return any(True for _ in self.positions_in(data))

    def positions_in(self, data: bytes) -> Iterator[int]:
        """Yields the positions where the row begins."""
        (offset, longest), *others = self.parts
        position = data.find(longest, offset)
        while position >= 0:
            if all(data.startswith(part, position - offset + its) for its, part in others):
                yield position - offset
            position = data.find(longest, position + 1)


def find_rows(pid: int, claims: Iterable[Claim]) -> list[Finding]:
    """Look for claims' rows in a process's memory, or in files. Raises OSError, ValueError.

    REQUIRES: the process maps and unmaps no memory of theirs meanwhile.
    """
    memory = ProcessMemory(pid)
    opened = _open_files(pid)
    return [_find_claim_rows(pid, memory, opened, claim) for claim in claims]


def _find_claim_rows(
    pid: int, memory: ProcessMemory, opened: Mapping[str, Sequence[bool]], claim: Claim
) -> Finding:
    rows = [_Row.from_hex_parts(parts) for parts in claim.rows]
    if claim.gpu is not None:
        gpus = _emulated_gpus(pid) if claim.gpu == EMULATED_GPU else []
        return Finding(
            file=_EMULATED_MEMORY if gpus else None,
            devices=_devices(gpus),
            gpu=EMULATED_GPU if gpus else None,
            found=_found_in_files(gpus, rows),
        )
    if not claim.address:
        files = files_in(Path(claim.folder)) if claim.folder else []
        return Finding(
            file=claim.folder,
            devices=_devices(files),
            is_direct=_is_direct(opened, claim.folder) if claim.folder else None,
            found=_found_in_files(files, rows),
        )
    present = list(memory.present_ranges(claim.address, claim.length))
    nodes = memory.nodes_of_ranges(present)
    file = memory.backing_file(claim.address)
    if file is not None:
        # Search the file itself, not the engine's mapping of it.
        files = [Path(file)]
        return Finding(nodes, file, _devices(files), found=_found_in_files(files, rows))
    return Finding(nodes, found=_found_in_memory(pid, present, rows))


@dataclass(frozen=True)
class Change:
    """A changed byte of a GPU's memory, with its new and its old value."""

    gpu: Path
    position: int
    now: int
    before: int

    def undo(self) -> None:
        _write(self.gpu, self.position, self.before)


def change_rows(rows: Iterable[Sequence[str]]) -> list[Change]:
    """Change the lowest bit of the rows' first bytes, at every place where they lie in the memory
    of this process's emulated GPUs. rows: as in a claim.
    """
    rows_to_find = {_Row.from_hex_parts(parts) for parts in rows}
    longest = max((row.length for row in rows_to_find), default=0)
    changes = []
    for gpu in _emulated_gpus(os.getpid()):
        first_bytes: dict[int, int] = {}
        with gpu.open("rb") as memory:
            for start, end in _data_in(memory.fileno()):
                for position, piece in _placed_pieces(memory.fileno(), start, end, longest):
                    places = (place for row in rows_to_find for place in row.positions_in(piece))
                    first_bytes.update({position + place: piece[place] for place in places})
        changes += [Change(gpu, position, byte ^ 1, byte) for position, byte in first_bytes.items()]
    for change in changes:
        _write(change.gpu, change.position, change.now)
    return changes


def _write(file: Path, position: int, byte: int) -> None:
    with file.open("r+b", buffering=0) as opened:
        os.pwrite(opened.fileno(), bytes([byte]), position)


def _emulated_gpus(pid: int) -> list[Path]:
    """Returns the memory of each emulated GPU that a process has: a memfd among its open files.

    An ordinary file of the same name isn't taken for one, since it lies on another device number.
    """
    probe = os.memfd_create("pmemlab")
    try:
        device = os.fstat(probe).st_dev
    finally:
        os.close(probe)
    found: dict[int, Path] = {}
    for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name)):
        with suppress(FileNotFoundError):  # closed meanwhile
            status = descriptor.stat()
            if str(descriptor.readlink()) == _EMULATED_MEMORY and status.st_dev == device:
                found.setdefault(status.st_ino, descriptor)
    return [*found.values()]


def _found_in_memory(pid: int, present: Iterable[tuple[int, int]], rows: Sequence[_Row]) -> int:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return len(rows) - len(_missing_in(memory.fileno(), present, set(rows)))


def _found_in_files(files: Iterable[Path], rows: Sequence[_Row]) -> int:
    missing = set(rows)
    for path in files:
        with suppress(FileNotFoundError), path.open("rb") as file:  # a tier tidies its folder
            missing = _missing_in(file.fileno(), _data_in(file.fileno()), missing)
    return len(rows) - len(missing)


def _missing_in(
    descriptor: int, ranges: Iterable[tuple[int, int]], missing: set[_Row]
) -> set[_Row]:
    """Returns the missing rows that aren't in these ranges either. Stops at the last one found."""
    if not missing:
        return missing
    longest = max(row.length for row in missing)
    for start, end in ranges:
        for piece in _pieces(descriptor, start, end, longest):
            missing = {row for row in missing if not row.occurs_in(piece)}
            if not missing:
                return missing
    return missing


def _data_in(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yields the (start, end) ranges of a file that aren't holes."""
    end = 0
    while True:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # ENXIO: there is no more
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _pieces(descriptor: int, start: int, end: int, longest: int) -> Iterator[bytes]:
    """Yields pieces of the bytes from `start` to `end`.

    The pieces overlap: any sequence of at most `longest` bytes lies whole in one of them.
    """
    return (piece for _, piece in _placed_pieces(descriptor, start, end, longest))


def _placed_pieces(
    descriptor: int, start: int, end: int, longest: int
) -> Iterator[tuple[int, bytes]]:
    """Yields the pieces of `_pieces`, each with its position."""
    while start < end:
        piece = os.pread(descriptor, min(_READ_BYTES, end - start), start)
        if not piece:
            return
        yield start, piece
        if start + len(piece) >= end:
            return
        start += max(1, len(piece) - longest + 1)


def _open_files(pid: int) -> dict[str, list[bool]]:
    """Returns folder -> for each regular file open in it, whether it was opened with O_DIRECT."""
    folders: dict[str, list[bool]] = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            path = descriptor.readlink()
            if not path.is_absolute() or not descriptor.is_file():
                continue
            information = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            flags = next(line for line in information.splitlines() if line.startswith("flags:"))
            is_direct = bool(int(flags.split()[1], 8) & os.O_DIRECT)
            folders.setdefault(str(path.parent), []).append(is_direct)
    return folders


def _is_direct(opened: Mapping[str, Sequence[bool]], folder: str) -> bool:
    """Returns whether files are open at any depth of a folder, all of them with O_DIRECT."""
    top = str(Path(folder).resolve())
    answers = [
        is_direct
        for name, files in opened.items()
        if name == top or name.startswith(f"{top}/")
        for is_direct in files
    ]
    return bool(answers) and all(answers)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _devices(files: Iterable[Path]) -> dict[str, int]:
    devices: Counter[str] = Counter()
    for path in files:
        # A tier tidies its folder at any time, and a mapped file may be unlinked.
        with suppress(FileNotFoundError):
            found = path.stat()
            devices[device_number(found.st_dev)] += found.st_blocks * 512
    return dict(devices)


def main() -> None:
    if len(sys.argv) == 1:
        json.dump([vars(seen) for _, seen in _answer(json.load(sys.stdin))], sys.stdout)
        return
    question, answer = map(Path, sys.argv[1:])
    answers_document: object
    try:
        answers = _answer(json.loads(question.read_text(encoding="utf-8")))
        answers_document = [{**vars(seen), "sought": len(claim.rows)} for claim, seen in answers]
    except Exception as error:  # the program that asked waits for an answer
        answers_document = {"error": f"{type(error).__name__}: {error}"}
    text = json.dumps(answers_document)
    print(text)
    # The answer's file exists whole or not at all.
    unfinished = answer.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(answer)


def _answer(question: Mapping[str, Any]) -> list[tuple[Claim, Finding]]:
    """Returns what is seen of each claim; a row that a claim names several times counts once."""
    claims = [
        Claim(**{**claim, "rows": tuple(dict.fromkeys(map(tuple, claim["rows"])))})
        for claim in question["claims"]
    ]
    return [*zip(claims, find_rows(question["pid"], claims), strict=True)]


if __name__ == "__main__":
    main()
