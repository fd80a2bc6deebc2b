"""Builds the images of machines and servers from the clone's sources, if these have changed."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import docker
from docker.errors import ImageNotFound

from pmemlab.machines.container import labels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.image_build import WheelsFrom, build_image
from pmemlab.machines.container.image_system import SUITE
from pmemlab.machines.container.long_command import Report, run_long_command
from pmemlab.machines.container.project_wheels import make_project_wheels
from pmemlab.machines.container.stages import Stages
from pmemlab.machines.container.wheels import prepare_wheels

__all__ = ["Target", "current_image", "ensure_image", "image_name"]

Target = Literal["machine", "servers"]
"""The purpose of an image, which is a stage of docker/Dockerfile."""

# The folders of docker/wheels that each image needs.
_WHEELS: Final[dict[Target, tuple[str, ...]]] = {
    "machine": ("run", "build"),
    "servers": ("run", "build", "servers"),
}
_PULLED_BASE = f"debian:{SUITE}-slim"
_MADE_BASE = f"pmemlab-base:{SUITE}"
_PULL_TIMEOUT_S = 180


def image_name(clone: Clone, target: Target) -> str:
    return f"{clone.project}:{target}"


def current_image(client: docker.DockerClient, clone: Clone, target: Target) -> str | None:
    """Returns the name of the clone's image, or None if no image has its present sources."""
    name = image_name(clone, target)
    found = _image_labels(client, name)
    if found is None or found.get(labels.SOURCES) != clone.sources_digest():
        return None
    return name


def ensure_image(client: docker.DockerClient, clone: Clone, target: Target, stages: Stages) -> str:
    """Returns the name of an image of the clone's present sources; builds it if there is none.

    Raises `LabError` with the last lines of the command that failed.
    """
    building = stages.begin("image")
    name = current_image(client, clone, target)
    if name is None:
        with ThreadPoolExecutor(1) as pool:  # both wait for the network
            wheels = pool.submit(_wheels, clone, target, stages.announce, building.report)
            base = _ensure_base(client, clone, stages.announce, building.report)
        _build(clone, target, base, wheels.result(), building.report)
        # Removes the image that had this name before, unless a container runs it.
        of_clone = f"{labels.CLONE}={clone.project}"
        client.images.prune(filters={"dangling": True, "label": [of_clone]})
        name = image_name(clone, target)
    building.end("ready")
    return name


def _image_labels(client: docker.DockerClient, name: str) -> dict[str, str] | None:
    try:
        return dict(client.images.get(name).labels)
    except ImageNotFound:
        return None


def _wheels(clone: Clone, target: Target, announce: Report, report: Report) -> WheelsFrom:
    folders = list(_WHEELS[target])
    has_own = make_project_wheels(clone, report)
    if has_own:
        folders.remove("build")  # the packages that compile wheels
    prepare_wheels(clone, folders, announce, report)
    return "ready" if has_own else "build"


def _ensure_base(
    client: docker.DockerClient, clone: Clone, announce: Report, report: Report
) -> str:
    """Returns Debian's own image, or one made by debootstrap if Debian's can't be pulled."""
    for name in (_PULLED_BASE, _MADE_BASE):
        if _image_labels(client, name) is not None:
            return name
    report(f"pulling {_PULLED_BASE}")
    if _pull(_PULLED_BASE):
        return _PULLED_BASE
    announce(f"{_PULLED_BASE} can't be pulled: making the base by debootstrap instead")
    run_long_command(["docker/base.sh", SUITE, _MADE_BASE], report, clone.root)
    return _MADE_BASE


def _pull(name: str) -> bool:
    try:
        done = subprocess.run(
            ["docker", "pull", "--quiet", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PULL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _build(clone: Clone, target: Target, base: str, wheels: WheelsFrom, report: Report) -> None:
    arguments = ["--build-arg", f"BASE={base}", "--build-arg", f"PROJECT={clone.project}"]
    # Docker declares build arguments of these names by itself.
    for proxy in ("http_proxy", "https_proxy", "no_proxy"):
        if proxy in os.environ:
            arguments += ["--build-arg", proxy]
    names = ["--tag", image_name(clone, target)]
    names += ["--label", f"{labels.CLONE}={clone.project}"]
    names += ["--label", f"{labels.SOURCES}={clone.sources_digest()}"]
    build_image(clone.root, target, arguments, names, report, wheels=wheels)
