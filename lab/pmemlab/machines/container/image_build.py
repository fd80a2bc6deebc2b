"""Builds the stages of docker/Dockerfile, in parallel if they don't depend on each other.

BuildKit does that by itself, and requests only the files that it needs. The classic builder goes
through a Dockerfile from top to bottom, and gets all files first. So it first gets parts of the
Dockerfile, each with the files that the part copies. Then it builds the whole from cached layers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, get_args

from pmemlab.machines.container.long_command import Report, run_long_command

__all__ = ["BASE", "DOCKERFILE", "SIDE_BY_SIDE", "WheelsFrom", "build_image", "extract_stages"]

DOCKERFILE = "docker/Dockerfile"

BASE: Final = "base"
SIDE_BY_SIDE: Final = ("build", "ready", "python", "kernel", "system")
"""Stages that depend on no stage but the base."""

WheelsFrom = Literal["build", "ready"]
"""The stage that the clone's wheels come from: "build" compiles them, "ready" copies them."""

# "Step 3/20 : RUN …" of the classic builder, "#7 [build 3/9] RUN …" of BuildKit.
_STEP = re.compile(r"^(?:Step (\d+/\d+) : |#\d+ (\[\S+ +\d+/\d+\]) )(.*)")
_STAGE = re.compile(r"^FROM \S+ AS (\S+)$", re.M)
_COPY = re.compile(r"^COPY (?!--from)(.+) \S+$", re.M)


def build_image(
    root: Path,
    target: str,
    arguments: Sequence[str],
    names: Sequence[str],
    report: Report,
    *,
    wheels: WheelsFrom = "build",
) -> None:
    """Builds a stage and the stages that it needs, from the clone's root.

    arguments: options of `docker build` for every stage. names: tag and labels of the image.

    Raises `LabError` with the last lines of the build that failed.
    """
    arguments = [*arguments, "--build-arg", f"WHEELS={wheels}"]
    if _has_buildkit():
        _build(root, root / DOCKERFILE, target, [*arguments, *names], report)
    else:
        unneeded = [stage for stage in get_args(WheelsFrom) if stage != wheels]
        _build_side_by_side(root, target, arguments, names, report, unneeded)


def extract_stages(dockerfile: str, stages: Sequence[str]) -> str:
    """Returns a Dockerfile of some of the stages, word for word."""
    starts = [found.start() for found in _STAGE.finditer(dockerfile)]
    required = [dockerfile[: starts[0]]]
    for start, end in zip(starts, [*starts[1:], len(dockerfile)], strict=True):
        stage = _STAGE.match(dockerfile, start)
        assert stage is not None
        if stage[1] in stages:
            required.append(dockerfile[start:end])
    return "".join(required)


def _copied_paths(dockerfile: str) -> list[str]:
    """Returns the paths in the clone of the files and folders that a Dockerfile copies."""
    return [source for copied in _COPY.findall(dockerfile) for source in copied.split()]


def _link(root: Path, context: Path, sources: Sequence[str]) -> None:
    """Links or copies sources into a build context; Docker itself reports missing sources."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.so")  # as in .dockerignore
    for source in sorted(sources):  # a folder before its contents
        path, link = root / source, context / source
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.exists():
            continue
        if path.is_dir():
            shutil.copytree(path, link, ignore=unwanted, copy_function=_link_or_copy)
        elif path.exists():
            _link_or_copy(path, link)


def _link_or_copy(path: str | Path, link: str | Path) -> None:
    """Links a file, or copies it: some file systems have no links, some files may not be linked."""
    try:
        os.link(path, link)
    except OSError:
        shutil.copy2(path, link)


def _build_side_by_side(
    root: Path,
    target: str,
    arguments: Sequence[str],
    names: Sequence[str],
    report: Report,
    unneeded: Sequence[str],
) -> None:
    """Builds the base, then the parallel stages, then the whole from their cached layers."""
    dockerfile = (root / DOCKERFILE).read_text(encoding="utf-8")
    stages = [stage for stage in _STAGE.findall(dockerfile) if stage not in unneeded]
    side_by_side = [stage for stage in SIDE_BY_SIDE if stage not in unneeded]
    beside_clone = root / ".lab"  # so that files can be linked
    beside_clone.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside_clone, prefix="image-") as folder:

        def build_part(stages: Sequence[str], names: Sequence[str] = ()) -> None:
            context = Path(folder) / stages[-1]
            context.mkdir()
            part = extract_stages(dockerfile, stages)
            (context / "Dockerfile").write_text(part, encoding="utf-8")
            _link(root, context, [".dockerignore", *_copied_paths(part)])
            _build(context, context / "Dockerfile", stages[-1], [*arguments, *names], report)

        build_part([BASE])
        with ThreadPoolExecutor(len(side_by_side)) as pool:
            for _ in pool.map(build_part, [[BASE, stage] for stage in side_by_side]):
                pass  # raises a stage's error
        build_part(stages[: stages.index(target) + 1], names)


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
    """Returns whether BuildKit is the default. Elsewhere the classic builder is used."""
    if os.environ.get("DOCKER_BUILDKIT") == "0":
        return False
    buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    return buildx.returncode == 0
