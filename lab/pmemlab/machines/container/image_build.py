"""Builds the stages of docker/Dockerfile, those that need not wait for each other at the same time.

BuildKit does that by itself. The classic builder goes through a Dockerfile from top to bottom, so
it is given parts of it first, and finds their layers when it builds the whole.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from pmemlab.machines.container.long_command import Report, run_long_command

__all__ = ["BASE", "DOCKERFILE", "SIDE_BY_SIDE", "build_image", "part_of"]

DOCKERFILE = "docker/Dockerfile"

BASE: Final = "base"
SIDE_BY_SIDE: Final = ("build", "python", "kernel", "system")
"""Stages that need no other but the base."""

# "Step 3/20 : RUN …" of the classic builder, "#7 [build 3/9] RUN …" of BuildKit.
_STEP = re.compile(r"^(?:Step (\d+/\d+) : |#\d+ (\[\S+ +\d+/\d+\]) )(.*)")
_STAGE = re.compile(r"^FROM \S+ AS (\S+)$", re.M)


def build_image(
    root: Path, target: str, arguments: Sequence[str], names: Sequence[str], report: Report
) -> None:
    """Build a stage and what it needs, from the clone's root.

    arguments: options of `docker build` for every stage. names: for the image, its tag and labels.

    Raises `LabError` with the last lines of the build that failed.
    """
    if not _has_buildkit():
        _build_side_by_side(root, arguments, report)
    _build(root, root / DOCKERFILE, target, [*arguments, *names], report)


def part_of(dockerfile: str, stages: Sequence[str]) -> str:
    """A Dockerfile of some of its stages, word for word."""
    starts = [found.start() for found in _STAGE.finditer(dockerfile)]
    wanted = [dockerfile[: starts[0]]]
    for start, end in zip(starts, [*starts[1:], len(dockerfile)], strict=True):
        stage = _STAGE.match(dockerfile, start)
        assert stage is not None
        if stage[1] in stages:
            wanted.append(dockerfile[start:end])
    return "".join(wanted)


def _build_side_by_side(root: Path, arguments: Sequence[str], report: Report) -> None:
    """Of what all parts have, and then of the parts, the layers."""
    dockerfile = (root / DOCKERFILE).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:

        def build_part(*stages: str) -> None:
            path = Path(folder) / stages[-1]
            path.write_text(part_of(dockerfile, stages), encoding="utf-8")
            _build(root, path, stages[-1], arguments, report)

        build_part(BASE)
        with ThreadPoolExecutor(len(SIDE_BY_SIDE)) as pool:
            for _ in pool.map(partial(build_part, BASE), SIDE_BY_SIDE):
                pass  # or raise


def _build(
    root: Path, dockerfile: Path, target: str, options: Sequence[str], report: Report
) -> None:
    def report_step(line: str) -> None:
        step = _STEP.match(line)
        if step:
            report(f"{target}: step {step[1] or step[2]}: {step[3]}")

    command = ["docker", "build", "--force-rm", "--file", str(dockerfile), "--target", target]
    plain = {"BUILDKIT_PROGRESS": "plain"}
    run_long_command([*command, *options, "."], report_step, root, plain)


def _has_buildkit() -> bool:
    """Where it may be had but isn't the default, stages are built one after another."""
    if os.environ.get("DOCKER_BUILDKIT") == "0":
        return False
    buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    return buildx.returncode == 0
