"""Where the rows of tables really lie, asked of the kernel by the process that has them mapped."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.placement import backing_file, device_number, page_nodes, unmap_pages_of

__all__ = [
    "TableEvidence",
    "TierEvidence",
    "checkpoint_sha256",
    "forget_cached_pages",
    "state_sha256",
    "table_evidence",
]


@dataclass(frozen=True)
class TierEvidence:
    """Where the rows of one tier of a table really lay while it was alive.

    bytes: of its rows. mapped_bytes: of all that the tier has mapped, rows and room for more.
    nodes: NUMA node -> touched pages of that mapping on it, by move_pages(2).
    file: path of the file mapped at the first row, or the folder of a tier that keeps files.
    devices: "major:minor", by stat(2), of what that file or the folder's files are on -> bytes
        that they take there.
    is_pmem: what libpmem says of the mapping; None where libpmem is not involved.
    """

    name: str
    rows: int
    bytes: int
    mapped_bytes: int
    nodes: dict[int, int]
    file: str | None
    devices: dict[str, int]
    is_pmem: bool | None


@dataclass(frozen=True)
class TableEvidence:
    """One table: what the engine counted, and where its rows lay."""

    name: str
    stats: dict[str, Any]
    tiers: list[TierEvidence]


def table_evidence(variable: es.EmbeddingVariable) -> TableEvidence:
    """Ask the engine and the kernel about one table. REQUIRES: it is open and drained."""
    stats = variable.stats()
    return TableEvidence(
        name=variable.name,
        stats=dict(stats),
        tiers=[_tier_evidence(tier) for tier in stats["tiers"]],
    )


def forget_cached_pages(variables: Iterable[es.EmbeddingVariable]) -> None:
    """Let the kernel drop what it caches of the tables' files on disks, mapped or not.

    Reads that follow come from the medium. Raises OSError where the kernel refuses.
    """
    for variable in variables:
        for tier in variable.stats()["tiers"]:
            if tier["address"] or tier["path"] is None:
                continue
            unmap_pages_of(Path(tier["path"]))  # mapped ones aren't dropped
            for path in _files_in(Path(tier["path"])):
                with path.open("rb") as file:
                    os.fsync(file.fileno())  # nor are those that were not written yet
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def state_sha256(exports: Iterable[tuple[str, Mapping[str, NDArray[Any]]]]) -> str:
    """Return a SHA-256 in hex over all that variables hold, to the last bit.

    exports: each variable's name, and what it exports.
    """
    digest = hashlib.sha256()
    for name, export in exports:
        for field, array in sorted(export.items()):
            digest.update(f"{name} {field} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def checkpoint_sha256(
    steps: int,
    variables: Iterable[es.EmbeddingVariable],
    dense: Mapping[str, NDArray[Any]] | None = None,
) -> str:
    """Return a SHA-256 in hex over all that a checkpoint holds, to the last bit.

    steps: done by then. dense: a model's part that lies in no table.
    """
    rest = {"steps": np.array(steps, np.int64), **(dense or {})}
    exports = ((variable.name, variable.export()) for variable in variables)
    return state_sha256(itertools.chain(exports, [("rest", rest)]))


def _tier_evidence(tier: Any) -> TierEvidence:
    address: int = tier["address"]
    nodes: dict[int, int] = {}
    file = tier["path"]
    if address:
        nodes = page_nodes(address, tier["mapped_bytes"])
        file = backing_file(address)
        files = [Path(file)] if file else []
    else:
        files = _files_in(Path(file)) if file else []
    return TierEvidence(
        name=tier["name"],
        rows=tier["rows"],
        bytes=tier["bytes"],
        mapped_bytes=tier["mapped_bytes"],
        nodes=nodes,
        file=file,
        devices=_devices(files),
        is_pmem=tier["is_pmem"],
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _devices(files: Iterable[Path]) -> dict[str, int]:
    devices: Counter[str] = Counter()
    for path in files:
        # A tier tidies its folder at any time, and a mapped file may be unlinked.
        with suppress(FileNotFoundError):
            found = path.stat()
            devices[device_number(found.st_dev)] += found.st_blocks * 512
    return dict(devices)
