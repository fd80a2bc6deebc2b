"""The memory suite's processes: each fills a table and measures the DRAM that it takes."""

from __future__ import annotations

import ctypes
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import embstore as es
from embstore.bench.contenders import KEYS, Embstore, Ids
from embstore.bench.measure import quiesce
from embstore.bench.separate_process import call_in_separate_process
from embstore.bench.stores import Sizes, UnavailableError, open_variable

# Few, so that a batch's temporary memory is small beside the rows.
BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Request:
    storage_type: str  # a name of es.StorageType
    tier: int  # the tier that the rows shall lie in
    rows: int
    first_tier_rows: int  # used if the rows shall lie in a lower tier
    dim: int
    seed: int
    keys: str  # a key of contenders.KEYS
    folder: str


@dataclass(frozen=True)
class Measured:
    rows: int  # rows that lie in the tier
    dram_bytes: int  # growth of the process
    index_bytes: int  # the index's part of dram_bytes


def measure_in_separate_process(request: Request) -> Measured:
    """Measures in a new process. Raises UnavailableError if this computer lacks a medium or a
    library.
    """
    answer = call_in_separate_process(_answer, asdict(request), request.storage_type)
    if "unavailable" in answer:
        raise UnavailableError(answer["unavailable"])
    return Measured(**answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return asdict(measure(Request(**request)))
    except UnavailableError as error:
        return {"unavailable": str(error)}


def measure(request: Request) -> Measured:
    keys = KEYS[request.keys](request.rows, request.seed)
    # Opens a small table of the same kind first, and gives it a batch: memory that both tables
    # share (libraries, threads, buffers of a batch) doesn't count then, and all else does.
    small = keys[:BATCH_ROWS]
    with closing(_open(request, small, "small")) as before:
        _fill(before)
        bytes_before = dram_bytes()
        with closing(_open(request, keys, "measured")) as variable:
            _fill(variable)
            return Measured(
                rows=variable.variable.stats()["tiers"][request.tier]["rows"],
                dram_bytes=dram_bytes() - bytes_before,
                index_bytes=variable.counters().index_bytes or 0,
            )


def _open(request: Request, keys: Ids, name: str) -> Embstore:
    folder = Path(request.folder) / name
    folder.mkdir()
    sizes = Sizes(
        rows=keys.size,
        first_tier_rows=request.first_tier_rows,
        second_of_three_rows=keys.size,
        dim=request.dim,
    )
    return open_variable(es.StorageType[request.storage_type], keys, sizes, folder)


def _fill(variable: Embstore) -> None:
    variable.load(BATCH_ROWS)
    variable.settle()
    quiesce()


def dram_bytes() -> int:
    """Returns the DRAM that this process alone takes, with pages of tmpfs and swapped-out pages,
    but without pages of files, which the kernel may drop at any time."""
    with suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)  # returns freed memory to the system
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        fields[name] = int(size.split()[0]) * 1024
    if "Pss_Anon" not in fields:
        raise OSError("/proc/self/smaps_rollup has no Pss_Anon: this kernel is older than 5.3")
    return fields["Pss_Anon"] + fields["Pss_Shmem"] + fields["SwapPss"]
