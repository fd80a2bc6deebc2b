"""No module of embstore imports itself through others, not even inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import embstore

PACKAGE = Path(embstore.__file__).parent


def modules(package: Path) -> dict[str, Path]:
    """Returns the files of a package's modules by the modules' names."""
    return {
        ".".join([package.name, *path.relative_to(package).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }


def imported(source: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yields the modules that a file imports anywhere, except those under TYPE_CHECKING."""
    named: list[ast.AST] = [ast.parse(source.read_text(encoding="utf-8"))]
    while named:
        node = named.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        named += ast.iter_child_nodes(node)


def circle(package: Path) -> list[str]:
    """Returns the modules of a circle, each importing the one before; [] if there is none."""
    known = modules(package)
    # Imports of the package itself are left out: programs import what it has gathered, and its own
    # parts only `_core`.
    graph = {
        name: set(imported(source, known)) & set(known) - {package.name}
        for name, source in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_module_imports_itself_through_others() -> None:
    assert circle(PACKAGE) == []


@pytest.mark.parametrize(
    "back",
    [
        "import house.roof",
        "from house import roof",
        "def late():\n    import house.roof",
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("from house.roof import tiles\n")
    (package / "roof.py").write_text("from house.wall import bricks\ntiles = 1\n")
    (package / "wall.py").write_text(f"{back}\nbricks = 1\n")
    assert set(circle(package)) == {"house.roof", "house.wall"}
