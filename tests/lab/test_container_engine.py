"""Connecting to a Docker engine, and the errors if none answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from docker.errors import APIError, DockerException

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.container import connection
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.connection import connect
from pmemlab.machines.container.context import context_in_use
from pmemlab.machines.container.inventory import remove_images
from pmemlab.machines.container.lab import lab_down

CLONE = Path(__file__).parents[2]


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer without a system-wide engine, a rootless engine, or a Docker context."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(connection, "_SOCKET", tmp_path / "no-engine.sock")


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_a_one_line_error_names_the_command_that_installs_it() -> None:
    with pytest.raises(MissingRequirementError) as caught:
        connect()
    assert str(caught.value) == "no Docker engine answers; to get it: make docker"


@pytest.mark.usefixtures("no_engine")
def test_an_engine_that_refuses_this_user_has_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise DockerException("Error while fetching server API version") from PermissionError(13)

    monkeypatch.setattr(docker, "DockerClient", refuse)
    with pytest.raises(MissingRequirementError, match="usermod -aG docker"):
        connect()


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_there_is_nothing_to_take_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CLONE)
    lab_down()
    assert "nothing of the lab runs" in capsys.readouterr().out


@pytest.fixture
def context(no_engine: None, tmp_path: Path) -> Callable[[str, str], None]:
    """Returns a function that writes a Docker context with a name and an address."""
    del no_engine  # needed for its environment only

    def make(name: str, host: str) -> None:
        folder = tmp_path / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
        folder.mkdir(parents=True)
        endpoint = {"docker": {"Host": host, "SkipTLSVerify": False}}
        meta = {"Name": name, "Metadata": {}, "Endpoints": endpoint}
        (folder / "meta.json").write_text(json.dumps(meta))
        (tmp_path / "config.json").write_text(json.dumps({"currentContext": name}))

    return make


@contextmanager
def _engine(path: Path) -> Iterator[list[str]]:
    """Serves an engine that answers pings on a socket, and yields the paths of its requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"ApiVersion": "1.44"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "a socket"

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    class Server(UnixStreamServer):
        def get_request(self) -> tuple[socket.socket, str]:
            return super().get_request()[0], "a socket"

    path.parent.mkdir(parents=True, exist_ok=True)
    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("contexts", "environment", "asked"),
    [
        ({"mine": "mine"}, {}, "mine"),
        ({"mine": "mine"}, {"DOCKER_HOST": ""}, "mine"),
        ({"mine": "none"}, {"DOCKER_HOST": "unix://{}/other.sock"}, "other"),
        ({"wanted": "wanted", "current": "none"}, {"DOCKER_CONTEXT": "wanted"}, "wanted"),
    ],
)
def test_connect_uses_docker_host_and_else_the_context_in_use(
    context: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    contexts: dict[str, str],
    environment: dict[str, str],
    asked: str,
) -> None:
    """contexts: name -> socket of each context; the last is the current context."""
    for name, socket_name in contexts.items():
        context(name, f"unix://{tmp_path}/{socket_name}.sock")
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    with _engine(tmp_path / f"{asked}.sock") as requests:
        connect().close()
    assert any("_ping" in path for path in requests)


def test_an_engine_that_does_not_answer_is_named_with_the_setting_that_chose_it(
    context: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    context("mine", "unix:///no/such.sock")
    with pytest.raises(MissingRequirementError, match=r"context mine, unix:///no/such\.sock"):
        connect()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nor/this.sock")
    with pytest.raises(MissingRequirementError, match=r"DOCKER_HOST, unix:///nor/this\.sock"):
        connect()


def test_a_context_needs_no_config_file(
    context: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context("mine", f"unix://{tmp_path}/mine.sock")
    (tmp_path / "config.json").unlink()
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    with _engine(tmp_path / "mine.sock") as asked:
        connect().close()
    assert asked


def test_a_context_s_certificates_are_read_from_its_tls_folder(
    context: Callable[[str, str], None], tmp_path: Path
) -> None:
    context("mine", "tcp://127.0.0.1:2376")
    digest = hashlib.sha256(b"mine").hexdigest()
    folder = tmp_path / "contexts/tls" / digest / "docker"
    folder.mkdir(parents=True)
    for name in ("ca", "cert", "key"):
        (folder / f"{name}.pem").touch()
    in_use = context_in_use()
    assert in_use is not None
    assert in_use.tls is not None
    assert in_use.tls.ca_cert == f"{folder}/ca.pem"
    assert in_use.tls.cert == (f"{folder}/cert.pem", f"{folder}/key.pem")
    assert in_use.tls.verify


@pytest.mark.parametrize("content", ["{", "[]", '{"Endpoints": {}}'])
def test_an_unreadable_context_is_named_with_its_file(
    context: Callable[[str, str], None], tmp_path: Path, content: str
) -> None:
    context("mine", "unix:///no/such.sock")
    (file,) = tmp_path.glob("contexts/meta/*/meta.json")
    file.write_text(content)
    with pytest.raises(LabError, match=f"context mine: {file} can't be read"):
        connect()


def test_an_unreadable_docker_config_is_named(
    context: Callable[[str, str], None], tmp_path: Path
) -> None:
    context("mine", "unix:///no/such.sock")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LabError, match=f"{tmp_path}/config.json, can't be read"):
        connect()


def test_a_missing_context_is_named(
    context: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    context("mine", "unix:///no/such.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "none-of-that-name")
    with pytest.raises(LabError, match="none-of-that-name"):
        connect()


@pytest.mark.usefixtures("no_engine")
def test_without_a_system_wide_engine_the_user_s_rootless_engine_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "")  # so that connect()'s change is undone
    with _engine(tmp_path / "run/docker.sock") as asked:
        connect().close()
    # The `docker` command uses the rootless engine too.
    assert os.environ["DOCKER_HOST"] == f"unix://{tmp_path}/run/docker.sock"
    assert asked


class _Images:
    """A Docker engine's images: name -> (label, name of the image that it was built on)."""

    def __init__(self, images: dict[str, tuple[str, str | None]]) -> None:
        self.left = images

    def list(self, *, filters: dict[str, str], all: bool = False) -> list[Any]:
        del all
        wanted = filters["label"]
        return [
            SimpleNamespace(tags=[name], id=name)
            for name, (label, _) in self.left.items()
            if label == wanted or label.split("=")[0] == wanted
        ]

    def remove(self, name: str) -> None:
        if any(base == name for _, base in self.left.values()):
            raise APIError("in use", SimpleNamespace(status_code=409))  # type: ignore[arg-type]
        del self.left[name]


def test_a_clone_s_images_are_removed_with_their_stages_and_others_stay(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    images = _Images({
        "base": ("pmemlab.base=bookworm", None),
        "stage": (f"pmemlab.stage={clone.project}", None),
        "later-stage": (f"pmemlab.stage={clone.project}", "stage"),
        "image": (f"pmemlab.clone={clone.project}", None),
        "others": ("pmemlab.clone=pmemlab-other", None),
        "unrelated": ("maintainer=someone", None),
    })  # fmt: skip
    client: Any = SimpleNamespace(images=images)
    assert remove_images(client, clone) == 3
    assert set(images.left) == {"base", "others", "unrelated"}


def test_the_base_image_is_removed_with_the_last_image_built_on_it(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    images = _Images({
        "base": ("pmemlab.base=bookworm", None),
        "image": (f"pmemlab.clone={clone.project}", "base"),
    })  # fmt: skip
    client: Any = SimpleNamespace(images=images)
    assert remove_images(client, clone) == 2
    assert images.left == {}


class EngineScript:
    """docker/engine.sh on a computer that has only the programs that a test adds."""

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

    def add_docker(self) -> None:
        """Adds an engine that answers, and the plugin `docker compose`."""
        self.add("docker", "echo 28.0")

    def add_apt(self, *packages: str) -> None:
        """Adds an apt that offers the packages. As on Debian, installing starts the engine."""
        self.add("apt-cache", f'case " {" ".join(packages)} " in *" $2 "*) echo "$2 | 1";; esac')
        self.add("apt-get", f'case "$1" in install) touch {self.installed};; esac')
        self.add("docker", f"[ -e {self.installed} ] && echo 28.0")

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(CLONE / "docker/engine.sh"), command],
            env={"PATH": str(self.programs), **environment},
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


DOES_NOT_ANSWER = 'case "$1" in compose) ;; *) exit 1;; esac'
NONE_ANSWERS = "docker: no Docker engine answers; 'make docker' gets one\n"


@pytest.mark.parametrize(
    ("docker", "environment", "message"),
    [
        (None, {}, NONE_ANSWERS),
        (DOES_NOT_ANSWER, {"DOCKER_HOST": "unix:///var/run/docker.sock"}, NONE_ANSWERS),
        (DOES_NOT_ANSWER, {"DOCKER_CONTEXT": "nosuch"}, "answers at Docker's context nosuch"),
        ('[ "$1" != compose ] && echo 28', {}, "no Docker Compose; 'make docker' gets it"),
    ],
)
def test_the_check_names_in_one_line_what_is_missing_and_how_to_get_it(
    script: EngineScript, docker: str | None, environment: dict[str, str], message: str
) -> None:
    if docker is not None:
        script.add("docker", docker)
    done = script.run("check", **environment)
    assert (done.returncode, message in done.stderr, done.stderr.count("\n")) == (1, True, 1)


@pytest.mark.parametrize("command", ["check", "up"])
def test_no_engine_is_started_if_the_user_chose_another(script: EngineScript, command: str) -> None:
    script.add("dockerd")
    script.add(
        "docker",
        'case "$1" in compose) ;; context) echo far tcp://10.0.0.1:2375;; *) exit 1;; esac',
    )
    by_context = script.run(command)
    by_host = script.run(command, DOCKER_HOST="tcp://10.0.0.2:2375")
    assert (by_context.returncode, by_host.returncode) == (1, 1)
    assert "answers at Docker's context far, tcp://10.0.0.1:2375" in by_context.stderr
    assert "answers at DOCKER_HOST, tcp://10.0.0.2:2375" in by_host.stderr
    assert "dockerd" not in script.calls.read_text()


def test_the_check_is_silent_if_nothing_is_missing(script: EngineScript) -> None:
    script.add_docker()
    done = script.run("check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_installed_if_an_engine_answers(script: EngineScript) -> None:
    script.add_docker()
    script.add("dockerd")
    script.add_apt()
    script.add_docker()
    assert script.run("up").returncode == 0
    assert "apt-get" not in script.calls.read_text()


@pytest.mark.parametrize(
    ("offered", "installed"),
    [
        # The packages of Debian, then those of Ubuntu, which has Compose v2.
        ("docker.io docker-compose docker-cli", "docker.io docker-compose docker-cli"),
        ("docker.io docker-compose docker-compose-v2", "docker.io docker-compose-v2"),
    ],
)
def test_the_engine_and_compose_are_installed(
    script: EngineScript, offered: str, installed: str
) -> None:
    script.add_apt(*offered.split())
    assert script.run("up").returncode == 0
    assert script.install_call().endswith(f" {installed}")


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
