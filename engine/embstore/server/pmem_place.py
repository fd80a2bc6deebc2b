"""The directory of --pmem, and its free space."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from embstore.checkpoint.arguments import directory_path
from embstore.errors import InvalidArgumentError

__all__ = ["PmemPlace"]


@dataclass(frozen=True)
class PmemPlace:
    path: str  # absolute
    free_bytes: int

    @classmethod
    def of(cls, path: str) -> PmemPlace:
        place = directory_path(path, "--pmem")
        if not place.is_dir():
            raise InvalidArgumentError(
                f"--pmem: {path} isn't a directory; give one on the mount of the PMem"
            )
        if not os.access(place, os.W_OK | os.X_OK):
            raise InvalidArgumentError(f"--pmem: this user can't write to {path}")
        return cls(str(place), shutil.disk_usage(place).free)

    @property
    def whole_gib(self) -> int:
        """The GiB that the node offers, in whole numbers as Ray counts. Less than 1 counts as 1, or
        no shard could be placed there; room for a shard is checked again when it is made."""
        return max(1, self.free_bytes >> 30)
