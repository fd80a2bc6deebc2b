"""The clone that a lab belongs to: its sources, and the names that keep labs apart."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pmemlab.errors import MissingRequirementError

__all__ = ["Clone", "find_clone"]

# The sources of a machine's image. Keep in step with .dockerignore.
_IMAGE_SOURCES = (
    ".dockerignore",
    "constraints.txt",
    "docker/Dockerfile",
    "docker/extra-ca",
    "engine/CMakeLists.txt",
    "engine/bench",
    "engine/core",
    "engine/embstore",
    "engine/pacing",
    "engine/pyproject.toml",
    "lab/benchmarks",
    "lab/pmemlab",
    "lab/powercut",
    "lab/pyproject.toml",
)
_BUILD_PRODUCTS = (".pyc", ".so")


@dataclass(frozen=True)
class Clone:
    """A clone of the repository. root: its top folder, resolved."""

    COMPOSE_FILE: ClassVar = "compose.yaml"
    KVM_OVERRIDE: ClassVar = "docker/compose.kvm.yaml"
    root: Path

    @property
    def project(self) -> str:
        """Name of the clone's Compose project, unique to the clone.

        The host name is part of it: clones in two containers may share a path and an engine.
        """
        location = f"{socket.gethostname()}:{self.root}"
        return f"pmemlab-{hashlib.sha256(location.encode()).hexdigest()[:8]}"

    @property
    def compose_file(self) -> Path:
        return self.root / self.COMPOSE_FILE

    @property
    def servers_file(self) -> Path:
        """Compose file of the parameter servers."""
        return self.root / "compose.servers.yaml"

    @property
    def servers_project(self) -> str:
        """The Compose project of the parameter servers. The machines have another project, since
        Compose takes every container of a project for a service of the given file."""
        return f"{self.project}-servers"

    @property
    def kvm_override(self) -> Path:
        """Compose file that gives the machines KVM."""
        return self.root / self.KVM_OVERRIDE

    def sources_digest(self) -> str:
        """Returns the SHA-256 of an image's sources, by which a stale image is recognised."""
        digest = hashlib.sha256()
        for path in self._image_files():
            content = path.read_bytes()
            name = path.relative_to(self.root).as_posix()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def _image_files(self) -> Iterator[Path]:
        for name in _IMAGE_SOURCES:
            source = self.root / name
            files = sorted(source.rglob("*")) if source.is_dir() else [source]
            yield from (
                path for path in files if path.is_file() and path.suffix not in _BUILD_PRODUCTS
            )


def find_clone(start: Path | None = None) -> Clone:
    """Returns the clone that holds `start` (the working folder, if None).

    Raises `MissingRequirementError` if there is none: Compose, the image and the scenarios need its
    files. Guests and processes don't.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / Clone.COMPOSE_FILE).is_file() and (folder / "lab/pmemlab").is_dir():
            return Clone(folder)
    raise MissingRequirementError(
        f"{start} is not inside a clone of pmemlab, which containers and the project's own "
        "scenarios are made of; guests and processes need none",
        "cd to a clone",
    )
