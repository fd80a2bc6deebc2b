"""What the memory suite runs in processes of their own: it fills a table and measures its DRAM."""

from __future__ import annotations

import ctypes
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import embstore as es
from embstore.bench.contenders import KEYS, Embstore, Ids
from embstore.bench.measure import quiesce
from embstore.bench.own_process import call_apart
from embstore.bench.stores import Sizes, UnavailableError, open_variable

# Few, so that what a batch of them takes for a while is little beside the rows.
BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Request:
    storage_type: str  # es.StorageType's name
    tier: int  # that the rows are to lie in
    rows: int
    first_tier_rows: int  # where the rows are to lie in another tier
    dim: int
    seed: int
    keys: str  # of contenders.KEYS
    folder: str


@dataclass(frozen=True)
class Measured:
    rows: int  # that came to lie in the tier
    dram_bytes: int  # that the process grew by
    index_bytes: int  # of these


def measure_apart(request: Request) -> Measured:
    """In a process of its own; raises UnavailableError where this computer lacks what it needs."""
    answer = call_apart(_answer, asdict(request), request.storage_type)
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
    # Beside a small table of the same kind, which has had a batch already: so what both share, as
    # libraries, threads and buffers of a batch, doesn't count, and all else does.
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
    """Memory that this process alone takes of DRAM: pages of files, which the kernel may drop at
    any time, aside; pages of tmpfs and such as were swapped out included."""
    with suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)  # what was freed isn't taken
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        fields[name] = int(size.split()[0]) * 1024
    if "Pss_Anon" not in fields:
        raise OSError("/proc/self/smaps_rollup has no Pss_Anon: this kernel is older than 5.3")
    return fields["Pss_Anon"] + fields["Pss_Shmem"] + fields["SwapPss"]
