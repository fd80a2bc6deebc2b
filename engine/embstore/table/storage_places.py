"""Where on its node a partition keeps the files of its tiers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from embstore.errors import InvalidArgumentError, StorageError
from embstore.files import make_directory, reading_from
from embstore.options import NODE_PMEM, Tier, TierKind

__all__ = ["partition_numbers", "prepare_places", "tier_file"]

_ROW_FILE = b"ESROWLOG"
_UUID_BEGIN, _UUID_END = 16, 32  # in a file of rows; all 0: the file goes with its process

_MOST_QUOTED = 160  # a file's name has at most 255 bytes, with the number of its partition and more


def partition_numbers(partitions: int) -> Sequence[int | None]:
    """By which `tier_file` knows them; None: the only one."""
    return range(partitions) if partitions > 1 else [None]


def tier_file(tier: Tier, name: str, partition: int | None) -> str | None:
    """The file or directory of a partition, or of all (None), of the variable of that name; None
    where the tier has no file.
    """
    if tier.path is None:
        return None
    # A pool has several files, each with an ending of its own.
    ending = "" if tier.kind is TierKind.PMEM_POOL else f".{tier.kind.value.lower()}"
    return str(Path(tier.path) / f"{_stem(name, partition)}{ending}")


def _stem(name: str, partition: int | None) -> str:
    return _quoted(name) + ("" if partition is None else f".part{partition}")


def _quoted(name: str) -> str:
    """No two names have the same; it's neither hidden nor that of another's partition."""
    quoted = re.sub(r"^\.|\.(?=part\d+$)", "%2E", quote(name, safe=""))
    if len(quoted) <= _MOST_QUOTED:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{quoted[: _MOST_QUOTED - 1 - len(digest)]}={digest}"  # quote() leaves no = in a name


def prepare_places(tiers: Sequence[Tier], name: str, partitions: int) -> None:
    """Makes the directories of the tiers. Raises StorageError where they can't be made, and where
    rows lie in one without the checkpoint that tells which of them count; InvalidArgumentError
    where rows were kept for more partitions, or fewer.
    """
    has_pool = any(tier.kind is TierKind.PMEM_POOL for tier in tiers)  # which has the checkpoints
    for tier in tiers:
        if tier.path == NODE_PMEM:
            raise InvalidArgumentError(
                "storage_path: NODE_PMEM is that of a server's node; give shards=, or a directory"
            )
        if tier.path is not None:
            make_directory(Path(tier.path), "storage_path")
            _check_kept_rows(tier, name, partitions, has_pool=has_pool)


def _check_kept_rows(tier: Tier, name: str, partitions: int, *, has_pool: bool) -> None:
    """Those of as many partitions, with checkpoints, are left to the core."""
    ending = {TierKind.SSDHASH: ".ssdhash", TierKind.PMEM_POOL: ".pool"}.get(tier.kind)
    if ending is None or tier.path is None:
        return
    quoted = _quoted(name)
    manifest = re.compile(rf"({re.escape(quoted)}(?:\.part\d+)?){ending}\.checkpoint-\d+")
    ours = {_stem(name, number) for number in partition_numbers(partitions)}
    # Of thousands of tables' files few are this one's.
    with reading_from(Path(tier.path)):
        files = [file for file in os.listdir(tier.path) if file.startswith(quoted)]  # noqa: PTH208
    have_checkpoints = set()
    for file in sorted(files):
        kept = manifest.fullmatch(file)
        if kept and kept[1] not in ours:
            raise InvalidArgumentError(
                f"{Path(tier.path) / file}: rows of {name} were kept here by a variable of another "
                f"partition_num; take them over with that one, or remove {kept[1]}.*"
            )
        if kept:
            have_checkpoints.add(kept[1])
    if tier.kind is TierKind.SSDHASH and not has_pool:
        for stem in sorted(ours - have_checkpoints):
            _refuse_kept_rows(name, Path(tier.path) / f"{stem}{ending}")


def _refuse_kept_rows(name: str, folder: Path) -> None:
    """Raises StorageError for rows without a checkpoint; else they would be removed."""
    # Looked for once more: a close() meanwhile replaces it, and one listing may miss both files.
    checkpoints = folder.parent.glob(f"{folder.name}.checkpoint-*")
    if _has_kept_rows(folder) and all(file.suffix == ".new" for file in checkpoints):
        raise StorageError(
            f"{name}: {folder} has rows, but {folder}.checkpoint-* is gone, the file that says "
            f"which of them count; put that back as close() left it, or remove {folder} to begin "
            "with no rows (an earlier version had no such file before the first close())"
        )


def _has_kept_rows(folder: Path) -> bool:
    """Whether the folder of an SSDHASH tier has a file of rows that were to outlive their process,
    as its header says (engine/FORMAT.md, section LOG). Its owner, another process, may remove files
    and folder meanwhile.
    """
    with reading_from(folder), contextlib.suppress(FileNotFoundError):
        return any(_was_kept(file) for file in folder.glob("rows-*.ssdhash"))
    return False


def _was_kept(file: Path) -> bool:
    if not file.is_file():  # a FIFO would have its reader wait for ever
        return False
    try:
        with file.open("rb") as opened:
            header = opened.read(_UUID_END)
    except FileNotFoundError:
        return False
    return header.startswith(_ROW_FILE) and any(header[_UUID_BEGIN:])
