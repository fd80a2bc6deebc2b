"""The files and directories of a partition's tiers."""

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
_UUID_BEGIN, _UUID_END = 16, 32  # in a file of rows; all 0: the file isn't kept

_MAX_QUOTED = 160  # file names have at most 255 bytes, with partition number and endings


def partition_numbers(partitions: int) -> Sequence[int | None]:
    """Returns the partitions' numbers for `tier_file`; None: the only partition."""
    return range(partitions) if partitions > 1 else [None]


def tier_file(tier: Tier, name: str, partition: int | None) -> str | None:
    """Returns the file or directory of a tier of partition `partition`, or of all partitions if
    that is None, of the variable `name`. Returns None if the tier has no file.
    """
    if tier.path is None:
        return None
    # The core adds the endings of a pool's several files.
    ending = "" if tier.kind is TierKind.PMEM_POOL else f".{tier.kind.value.lower()}"
    return str(Path(tier.path) / f"{_stem(name, partition)}{ending}")


def _stem(name: str, partition: int | None) -> str:
    return _quoted(name) + ("" if partition is None else f".part{partition}")


def _quoted(name: str) -> str:
    """Returns a file name for `name` that no other name has, that is not hidden, and that can't be
    taken for another variable's partition.
    """
    quoted = re.sub(r"^\.|\.(?=part\d+$)", "%2E", quote(name, safe=""))
    if len(quoted) <= _MAX_QUOTED:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{quoted[: _MAX_QUOTED - 1 - len(digest)]}={digest}"  # quote() leaves no = in a name


def prepare_places(tiers: Sequence[Tier], name: str, partitions: int) -> None:
    """Makes the directories of the tiers. Raises StorageError if they can't be made, or if one has
    rows without the checkpoint that says which rows count; raises InvalidArgumentError if rows were
    kept with another number of partitions.
    """
    has_pool = any(tier.kind is TierKind.PMEM_POOL for tier in tiers)  # a pool has the checkpoints
    for tier in tiers:
        if tier.path == NODE_PMEM:
            raise InvalidArgumentError(
                "storage_path: NODE_PMEM is that of a server's node; give shards=, or a directory"
            )
        if tier.path is not None:
            make_directory(Path(tier.path), "storage_path")
            _check_kept_rows(tier, name, partitions, has_pool=has_pool)


def _check_kept_rows(tier: Tier, name: str, partitions: int, *, has_pool: bool) -> None:
    """Raises errors as `prepare_places`. Rows with checkpoints of as many partitions pass: the core
    checks them.
    """
    ending = {TierKind.SSDHASH: ".ssdhash", TierKind.PMEM_POOL: ".pool"}.get(tier.kind)
    if ending is None or tier.path is None:
        return
    quoted = _quoted(name)
    manifest = re.compile(rf"({re.escape(quoted)}(?:\.part\d+)?){ending}\.checkpoint-\d+")
    stems = {_stem(name, number) for number in partition_numbers(partitions)}
    # Filters by prefix first: the directory may have the files of thousands of tables.
    with reading_from(Path(tier.path)):
        files = [file for file in os.listdir(tier.path) if file.startswith(quoted)]  # noqa: PTH208
    have_checkpoints = set()
    for file in sorted(files):
        manifest_name = manifest.fullmatch(file)
        if manifest_name and manifest_name[1] not in stems:
            raise InvalidArgumentError(
                f"{Path(tier.path) / file}: rows of {name} were kept here by a variable of another "
                f"partition_num; take them over with that one, or remove {manifest_name[1]}.*"
            )
        if manifest_name:
            have_checkpoints.add(manifest_name[1])
    if tier.kind is TierKind.SSDHASH and not has_pool:
        for stem in sorted(stems - have_checkpoints):
            _refuse_rows_without_checkpoint(name, Path(tier.path) / f"{stem}{ending}")


def _refuse_rows_without_checkpoint(name: str, folder: Path) -> None:
    """Raises StorageError for rows without a checkpoint, which would be removed otherwise."""
    # Lists the checkpoints again: a close() may have replaced one, and a listing may miss both.
    checkpoints = folder.parent.glob(f"{folder.name}.checkpoint-*")
    if _has_kept_rows(folder) and all(file.suffix == ".new" for file in checkpoints):
        raise StorageError(
            f"{name}: {folder} has rows, but {folder}.checkpoint-* is gone, the file that says "
            f"which of them count; put that back as close() left it, or remove {folder} to begin "
            "with no rows (an earlier version had no such file before the first close())"
        )


def _has_kept_rows(folder: Path) -> bool:
    """Returns whether the folder of an SSDHASH tier has a file of kept rows, by the file's header
    (engine/FORMAT.md, section LOG). The owner, another process, may remove files and folder
    meanwhile.
    """
    with reading_from(folder), contextlib.suppress(FileNotFoundError):
        return any(_is_kept_row_file(file) for file in folder.glob("rows-*.ssdhash"))
    return False


def _is_kept_row_file(file: Path) -> bool:
    if not file.is_file():  # reading a FIFO could block for ever
        return False
    try:
        with file.open("rb") as opened:
            header = opened.read(_UUID_END)
    except FileNotFoundError:
        return False
    return header.startswith(_ROW_FILE) and any(header[_UUID_BEGIN:])
