"""Where on its node a partition keeps the files of its tiers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from embstore.errors import InvalidArgumentError, StorageError
from embstore.options import NODE_PMEM, Tier, TierKind

__all__ = ["partition_names", "prepare_places", "tier_file"]


def partition_names(name: str, partitions: int) -> list[str]:
    """What the partitions of a variable call their files."""
    return [f"{name}.part{i}" for i in range(partitions)] if partitions > 1 else [name]


def tier_file(tier: Tier, file_name: str) -> str | None:
    """file_name: of `partition_names`. None where the tier has no file."""
    if tier.path is None:
        return None
    if tier.kind is TierKind.PMEM_POOL:
        return str(Path(tier.path) / quote(file_name, safe=""))  # the pool has several files
    return str(Path(tier.path) / f"{quote(file_name, safe='')}.{tier.kind.value.lower()}")


def prepare_places(tiers: Sequence[Tier], name: str, partitions: int) -> None:
    """Makes the directories of the tiers; StorageError where they can't be, or where rows were kept
    for more partitions, or fewer.
    """
    for tier in tiers:
        if tier.path == NODE_PMEM:
            raise InvalidArgumentError(
                "storage_path: NODE_PMEM is that of a server's node; give shards=, or a directory"
            )
        if tier.path is not None:
            _make_directory(tier.path)
            _refuse_other_partitions(tier, name, partitions)


def _refuse_other_partitions(tier: Tier, name: str, partitions: int) -> None:
    """Those of as many partitions are left to the core."""
    if tier.kind is not TierKind.SSDHASH or tier.path is None:
        return
    quoted = re.escape(quote(name, safe=""))
    ours = {tier_file(tier, file_name) for file_name in partition_names(name, partitions)}
    for manifest in sorted(Path(tier.path).glob("*.checkpoint-*")):
        kept = re.fullmatch(rf"({quoted}(?:\.part\d+)?\.ssdhash)\.checkpoint-\d+", manifest.name)
        if kept and str(Path(tier.path) / kept[1]) not in ours:
            raise InvalidArgumentError(
                f"{manifest}: rows of {name} were kept here by a variable of another "
                f"partition_num; take them over with that one, or remove {kept[1]}*"
            )


def _make_directory(path: str) -> None:
    # Only the last part of the path: making the rest too would turn a mistyped or unmounted
    # device into an ordinary directory without a word.
    try:
        Path(path).mkdir(exist_ok=True)
    except FileNotFoundError:
        raise StorageError(
            f"storage_path: {path} can't be made, because {Path(path).parent} doesn't exist"
        ) from None
    except FileExistsError:
        raise StorageError(f"storage_path: {path} is a file; give a directory") from None
    except OSError as error:
        raise StorageError(f"storage_path: {path} can't be made: {error.strerror}") from error
