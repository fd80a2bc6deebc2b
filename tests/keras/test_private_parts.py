"""One file has all uses of Keras's undocumented parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import embstore

pytestmark = pytest.mark.any_backend

PACKAGE = Path(embstore.__file__).parent


def test_undocumented_parts_of_keras_are_used_in_one_file_only() -> None:
    of_keras = "keras|model|layer|sequential|functional|graph|optimizer|theirs"
    inside = re.compile(rf"keras\.src|\b({of_keras})\._[a-z]|_keras_history")
    using = [
        source.relative_to(PACKAGE)
        for folder in ("keras", "openembedding")
        for source in (PACKAGE / folder).rglob("*.py")
        if inside.search(source.read_text(encoding="utf-8"))
    ]
    assert using == [Path("keras/private.py")]
