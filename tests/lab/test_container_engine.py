"""Reaching a Docker engine, and what is said where none answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from pmemlab.compose import lab_down
from pmemlab.container_engine.connection import connect
from pmemlab.errors import MissingRequirementError

CLONE = Path(__file__).parents[2]


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_one_line_names_the_command_that_gets_one() -> None:
    with pytest.raises(MissingRequirementError) as caught:
        connect()
    assert str(caught.value) == "no Docker engine answers; to get it: make docker"


def test_an_engine_that_refuses_this_user_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DockerException("Error while fetching server API version") from PermissionError(13)

    monkeypatch.setattr(docker, "from_env", refuse)
    with pytest.raises(MissingRequirementError, match="usermod -aG docker"):
        connect()


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_there_is_nothing_to_take_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CLONE)
    lab_down()
    assert "nothing of the lab runs" in capsys.readouterr().out


class EngineScript:
    """docker/engine.sh on a computer that has only the programs that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.calls = folder / "calls"
        self.installed = folder / "installed"
        for name in ("cat", "sed", "sh", "sleep", "tail", "touch"):
            program = shutil.which(name)
            assert program is not None
            (self.programs / name).symlink_to(program)
        self.add("id", 'case "$1" in -u) echo 0;; *) echo root;; esac')

    def add(self, name: str, script: str = "") -> None:
        program = self.programs / name
        program.unlink(missing_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{script}\n')
        program.chmod(0o755)

    def add_docker(self, compose: bool = True) -> None:
        """An engine that answers, the plugin `docker compose` too if so wanted."""
        self.add("docker", f'case "$1" in compose) exit {0 if compose else 1};; esac; echo 28.0')

    def add_apt(self, *packages: str) -> None:
        """An apt that offers packages; as Debian's does, installing starts the engine."""
        self.add("apt-cache", f'case " {" ".join(packages)} " in *" $2 "*) echo "$2 | 1";; esac')
        self.add("apt-get", f'case "$1" in install) touch {self.installed};; esac')
        self.add("docker", f"[ -e {self.installed} ] && echo 28.0")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(CLONE / "docker/engine.sh"), command],
            env={"PATH": str(self.programs)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def install_call(self) -> str:
        return next(c for c in self.calls.read_text().splitlines() if "apt-get install" in c)


@pytest.fixture
def script(tmp_path: Path) -> EngineScript:
    return EngineScript(tmp_path)


def test_the_check_says_in_one_line_how_to_get_an_engine(script: EngineScript) -> None:
    done = script.run("check")
    assert done.returncode == 1
    assert done.stderr == "docker: no Docker engine answers; 'make docker' gets one\n"


def test_the_check_says_how_to_get_compose(script: EngineScript) -> None:
    script.add_docker(compose=False)
    done = script.run("check")
    assert done.returncode == 1
    assert "no Docker Compose; 'make docker' gets it" in done.stderr


def test_the_check_is_silent_where_all_is_there(script: EngineScript) -> None:
    script.add_docker()
    done = script.run("check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_installed_where_an_engine_answers(script: EngineScript) -> None:
    script.add_docker()
    script.add("dockerd")
    script.add_apt()
    script.add_docker()
    assert script.run("up").returncode == 0
    assert "apt-get" not in script.calls.read_text()


def test_on_debian_the_engine_and_compose_are_installed(script: EngineScript) -> None:
    script.add_apt("docker.io", "docker-compose", "docker-cli")
    assert script.run("up").returncode == 0
    assert script.install_call().endswith("docker.io docker-compose docker-cli")


def test_on_ubuntu_composes_second_version_is_installed(script: EngineScript) -> None:
    script.add_apt("docker.io", "docker-compose", "docker-compose-v2")
    assert script.run("up").returncode == 0
    assert script.install_call().endswith("docker.io docker-compose-v2")


def test_without_root_the_script_says_what_to_do(script: EngineScript) -> None:
    script.add_apt("docker.io", "docker-compose")
    script.add("id", 'case "$1" in -u) echo 1000;; *) echo alice;; esac')
    done = script.run("up")
    assert done.returncode == 1
    assert "sudo make docker" in done.stderr
    assert "usermod -aG docker alice" in done.stderr


def test_without_apt_the_script_says_what_to_do(script: EngineScript) -> None:
    done = script.run("up")
    assert done.returncode == 1
    assert "install Docker and Compose by this system's own means" in done.stderr
