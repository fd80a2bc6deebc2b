"""A disk that fills up while a file is written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    """Makes every later `Path.write_text` fail with ENOSPC after it has written three letters."""

    def cut_short(path: Path, text: str, *_: object, **__: object) -> int:
        with path.open("w") as file:
            file.write(text[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(Path, "write_text", cut_short)
