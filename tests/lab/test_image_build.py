"""The image's stages, which the lab builds in parallel if Docker has only its classic builder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from pmemlab.errors import LabError
from pmemlab.machines.container import image_build
from pmemlab.machines.container.image_build import (
    BASE,
    DOCKERFILE,
    SIDE_BY_SIDE,
    WheelsFrom,
    build_image,
    extract_stages,
)
from pmemlab.machines.container.long_command import Report

CLONE = Path(__file__).parents[2]
WHOLE = (CLONE / DOCKERFILE).read_text()


class Docker:
    """Stands in for `docker build`. Records each target's Dockerfile and the files sent for it."""

    def __init__(self, fails_at: str = "") -> None:
        self.commands: list[list[str]] = []
        self.dockerfiles: dict[str, str] = {}
        self.files: dict[str, set[str]] = {}
        self.fails_at = fails_at

    def __call__(
        self, command: Sequence[str], _report: Report, folder: Path, _more: Mapping[str, str]
    ) -> None:
        target = command[command.index("--target") + 1]
        if target == self.fails_at:
            raise LabError(f"docker failed: {target}")
        self.commands.append(list(command))
        self.dockerfiles[target] = Path(command[command.index("--file") + 1]).read_text()
        self.files[target] = {str(path.relative_to(folder)) for path in folder.rglob("*.*")}


def build_with(
    monkeypatch: pytest.MonkeyPatch,
    docker: Docker,
    root: Path = CLONE,
    wheels: WheelsFrom = "build",
) -> None:
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    monkeypatch.setattr(image_build, "run_long_command", docker)
    arguments = ["--build-arg", "BASE=b"]
    build_image(root, "machine", arguments, ["--tag", "t"], lambda _: None, wheels=wheels)


@pytest.mark.parametrize("wheels", ["build", "ready"])
def test_each_part_s_stages_stand_word_for_word_in_the_image_s_dockerfile(
    monkeypatch: pytest.MonkeyPatch, wheels: WheelsFrom
) -> None:
    docker = Docker()
    build_with(monkeypatch, docker, wheels=wheels)
    image = docker.dockerfiles.pop("machine")
    assert sorted(docker.dockerfiles) == sorted(["base", wheels, "kernel", "python", "system"])
    for target, dockerfile in docker.dockerfiles.items():
        stages = re.split(r"(?m)^(?=FROM )", dockerfile)
        assert all(stage in image for stage in stages), target
        assert f" AS {target}\n" in stages[-1]


def test_an_image_has_every_stage_except_the_unused_source_of_wheels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = re.split(r"(?m)^(?=FROM )", WHOLE[: WHOLE.index("FROM machine AS servers")])
    for wheels, other in (("build", "ready"), ("ready", "build")):
        docker = Docker()
        build_with(monkeypatch, docker, wheels=cast(WheelsFrom, wheels))
        needed = [stage for stage in machine if f" AS {other}\n" not in stage]
        assert len(needed) == len(machine) - 1
        assert docker.dockerfiles["machine"] == "".join(needed)
        assert all(f"WHEELS={wheels}" in command for command in docker.commands)


@pytest.mark.parametrize("stage", SIDE_BY_SIDE)
def test_a_part_has_all_stages_that_it_needs(stage: str) -> None:
    stages = (BASE, stage)
    part = extract_stages(WHOLE, stages)
    needed = re.findall(r"(?:^FROM |--from=)([a-z]+)\b", part, re.M)
    assert set(needed) <= set(stages)
    assert re.findall(r"^FROM \S+ AS (\S+)$", part, re.M) == list(stages)


def test_the_parts_cover_every_stage_that_the_image_copies_from() -> None:
    own = WHOLE[WHOLE.index(" AS machine\n") :]
    needed = {"system", *re.findall(r"--from=([a-z]+)\b", own)}
    assert needed <= {BASE, *SIDE_BY_SIDE, "wheels"}
    assert "\nARG WHEELS=build\n" in WHOLE
    assert "\nFROM ${WHEELS} AS wheels\n" in WHOLE


def test_a_part_s_build_context_has_only_the_files_that_it_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (
        *(".dockerignore", "README.md", "docker/extra-ca/own.crt"),
        *("docker/wheels/run/numpy.whl", "docker/wheels/build/cmake.whl"),
        *("docker/wheels/servers/torch.whl", "lab/pmemlab/errors.py", "lab/pmemlab/proof.py"),
        *("lab/pmemlab/__pycache__/errors.pyc", "engine/embstore/_core.so"),
        *("engine/embstore/__init__.py", "docker/wheels/own/embstore.whl"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / DOCKERFILE).write_text(WHOLE)
    docker = Docker()
    build_with(monkeypatch, docker, tmp_path)
    always = {".dockerignore", "docker/extra-ca/own.crt"}
    assert docker.files["base"] == docker.files["system"] == always
    assert docker.files["python"] == always | {"docker/wheels/run/numpy.whl"}
    assert docker.files["kernel"] == always | {"lab/pmemlab/errors.py"}
    assert docker.files["build"] == always | {
        "docker/wheels/build/cmake.whl",
        "engine/embstore/__init__.py",
        "lab/pmemlab/errors.py",
        "lab/pmemlab/proof.py",
    }
    assert docker.files["machine"] == docker.files["python"] | docker.files["build"]
    docker = Docker()
    build_with(monkeypatch, docker, tmp_path, "ready")
    assert docker.files["ready"] == always | {"docker/wheels/own/embstore.whl"}
    assert "docker/wheels/build/cmake.whl" not in docker.files["machine"]
    assert not list(tmp_path.glob(".lab/*"))  # links are removed


def test_only_the_whole_image_gets_the_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker()
    build_with(monkeypatch, docker)
    assert all("BASE=b" in command for command in docker.commands)
    assert ["t" in command for command in docker.commands] == [False] * 5 + [True]


def test_a_part_that_cannot_be_built_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(fails_at="kernel")
    with pytest.raises(LabError, match="kernel"):
        build_with(monkeypatch, docker)
    assert "machine" not in docker.dockerfiles
