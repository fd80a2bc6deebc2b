"""Makes the folders that stand for the medium, anew for each try."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from powercut.aftermath import kept_folder
from powercut.errors import PowercutError

__all__ = ["Medium", "default_base", "new_medium"]


@dataclass(frozen=True)
class Medium:
    """The folders of a try.

    folder: the path that `{medium}` stands for. under: more folders, whose paths the program knows.
    session: for the library's files. output: the file with the program's output.
    """

    folder: Path
    under: tuple[Path, ...]
    session: Path
    output: Path

    @property
    def roots(self) -> tuple[Path, ...]:
        return (self.folder, *self.under)

    def fill(self, placeholders: Sequence[str]) -> list[str]:
        """Returns a command with the paths in place of {medium} and {output}."""
        return [
            word.replace("{medium}", str(self.folder)).replace("{output}", str(self.output))
            for word in placeholders
        ]

    def with_placeholders(self, text: str) -> str:
        """Returns a text with {medium} and {output} for these paths, which differ in each try."""
        return text.replace(str(self.folder), "{medium}").replace(str(self.output), "{output}")

    def renew(self) -> None:
        """Removes the files of a run, and keeps the medium's content."""
        for folder in (self.session, *map(kept_folder, self.roots)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()


def default_base() -> Path:
    """Returns a folder in memory, if memory has one for files: nothing here has to last."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)
    return memory if usable else Path(tempfile.gettempdir())


@contextlib.contextmanager
def new_medium(
    base: Path, under: Sequence[Path] = (), template: Medium | None = None
) -> Iterator[Medium]:
    """Yields a new medium under `base`, empty or a copy of `template`, and removes it at the end.

    Raises `PowercutError`.
    """
    for path in (base, *under):
        if ":" in str(path.absolute()):
            raise PowercutError(f"{path}: the medium's path can't have a colon in it")
    try:
        folder = Path(tempfile.mkdtemp(prefix="powercut-", dir=base)).resolve()
    except OSError as error:
        raise PowercutError(f"{base}: no medium can be made here: {error.strerror}") from error
    medium = Medium(
        folder / "medium",
        tuple(path.parent.resolve() / path.name for path in under),
        folder / "session",
        folder / "output",
    )
    made_roots: list[Path] = []
    try:
        for root, source in zip(
            medium.roots, template.roots if template else [None] * len(medium.roots), strict=True
        ):
            _make(root, source)
            made_roots.append(root)
        medium.renew()
        yield medium
    finally:
        for root in made_roots:
            _remove(root)
            _remove(kept_folder(root))
        _remove(folder)


def _make(root: Path, source: Path | None) -> None:
    try:
        root.mkdir()
    except FileExistsError:
        raise PowercutError(
            f"--under {root}: is there already; it is made and removed for each try, so name a "
            "folder that isn't"
        ) from None
    except OSError as error:
        raise PowercutError(f"--under {root}: can't be made: {error.strerror}") from error
    if source is not None and any(source.iterdir()):
        copy = ["cp", "-a", "--sparse=always", f"{source}/.", str(root)]
        done = subprocess.run(copy, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PowercutError(f"{' '.join(copy)}: {done.stderr.strip()}")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
