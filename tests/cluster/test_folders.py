"""Each folder of embstore/cluster uses only earlier ones; one file uses Ray's private parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import embstore

PACKAGE = Path(embstore.__file__).parent
FOLDERS = ["ray", "rows", "server", "job"]  # each may use the folders before it


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_uses_only_folders_before_it(folder: str) -> None:
    allowed = {folder, *FOLDERS[: FOLDERS.index(folder)]}
    sources = list((PACKAGE / "cluster" / folder).rglob("*.py"))
    assert sources
    for source in sources:
        text = source.read_text(encoding="utf-8")
        used = set(re.findall(r"from embstore\.cluster(?:\.(\w+))?[.\w]* import", text))
        assert used <= allowed, f"{source.name} of {folder} uses {sorted(used - allowed)}"


def test_undocumented_parts_of_ray_are_used_in_one_file_only() -> None:
    inside = re.compile(r"ray\._(private|raylet)")
    using = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if inside.search(path.read_text(encoding="utf-8"))
    ]
    assert using == [Path("cluster/ray/private.py")]
