"""The choice of the Compose program, its arguments, and the clone that a lab belongs to."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import pytest

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.container.clone import Clone, find_clone
from pmemlab.machines.container.compose_command import Compose

CLONE = Clone(Path(__file__).parents[2])


class Programs:
    """A PATH with only the programs that a test adds. Their calls are logged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"

    def add(self, name: str, script: str = "") -> None:
        program = self.folder / name
        log = f'echo "{name} $* ($COMPOSE_PROJECT_NAME $PMEMLAB_IMAGE)" >> {self.calls}'
        program.write_text(f"#!/bin/sh\n{log}\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def last_call(self) -> str:
        return self.calls.read_text().splitlines()[-1]


def _compose() -> Compose:
    return Compose(
        CLONE,
        Path("one.yaml"),
        Path("other.yaml"),
        project="project",
        environment={"PMEMLAB_IMAGE": "image:tag"},
    )


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "settings"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return Programs(tmp_path)


def test_the_plugin_is_preferred(programs: Programs) -> None:
    programs.add("docker")
    programs.add("docker-compose")
    _compose().run("up")
    assert programs.last_call().startswith("docker compose ")


def test_docker_compose_version_1_is_used_if_docker_has_no_plugin(programs: Programs) -> None:
    programs.add("docker", "exit 1")
    programs.add("docker-compose")
    _compose().run("up")
    assert programs.last_call().startswith("docker-compose ")


def test_without_compose_the_error_names_the_command_that_gets_it(programs: Programs) -> None:
    programs.add("docker", "exit 1")
    with pytest.raises(MissingRequirementError, match="make docker"):
        _compose()


def test_compose_gets_project_environment_and_files(programs: Programs) -> None:
    programs.add("docker-compose")
    _compose().run("up", "--no-start")
    call = programs.last_call()
    assert "(project image:tag)" in call
    assert "--file one.yaml --file other.yaml up --no-start" in call


def _make_context(settings: Path, name: str, host: str) -> Path:
    """Writes a Docker context, and returns the folder for its certificates."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = settings / "contexts/meta" / digest / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))
    return settings / "contexts/tls" / digest / "docker"


def test_compose_connects_to_the_engine_of_docker_s_context(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = _make_context(tmp_path / "settings", "far", "tcp://10.0.0.1:2376")
    certificates.mkdir(parents=True)
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    programs.add("docker-compose", f"echo $DOCKER_HOST $DOCKER_CERT_PATH >> {programs.calls}")
    _compose().run("up")
    assert programs.last_call() == f"tcp://10.0.0.1:2376 {certificates}"


def test_docker_host_is_passed_to_compose_unchanged(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_context(tmp_path / "settings", "far", "tcp://10.0.0.1:2375")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.2:2375")
    programs.add("docker-compose", f"echo $DOCKER_HOST >> {programs.calls}")
    _compose().run("up")
    assert programs.last_call() == "tcp://10.0.0.2:2375"


def test_the_error_contains_compose_s_output(programs: Programs) -> None:
    programs.add("docker-compose", 'case "$*" in *up*) echo no space left; exit 3;; esac')
    with pytest.raises(LabError, match=r"(?s)exit status 3.*no space left"):
        _compose().run("up")


def test_two_clones_have_labs_of_different_names(tmp_path: Path) -> None:
    assert Clone(tmp_path / "a").project != Clone(tmp_path / "b").project


def test_clones_at_the_same_path_on_two_hosts_have_labs_of_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Clone(tmp_path).project
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert Clone(tmp_path).project != here


def test_a_clone_is_found_from_the_folders_in_it() -> None:
    assert find_clone(CLONE.root / "tests" / "lab") == CLONE


def test_outside_of_a_clone_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingRequirementError, match=r"not inside a clone.*guests and processes"):
        find_clone(tmp_path)


def _make_clone(root: Path) -> Clone:
    """Returns a clone with the folders and files that an image's digest covers."""
    for name in (
        *("engine/bench", "engine/core", "engine/embstore", "engine/pacing"),
        *("lab/benchmarks", "lab/pmemlab", "lab/powercut", "docker/extra-ca"),
    ):
        (root / name).mkdir(parents=True)
    files = ("docker/Dockerfile", "engine/pyproject.toml", "lab/pyproject.toml")
    for name in (".dockerignore", "constraints.txt", *files):
        (root / name).write_text(name)
    (root / "engine/CMakeLists.txt").touch()
    return Clone(root)


def test_a_changed_source_makes_another_digest(tmp_path: Path) -> None:
    clone = _make_clone(tmp_path)
    before = clone.sources_digest()
    (tmp_path / "engine/core/table.cc").write_text("int table;")
    assert clone.sources_digest() != before


def test_a_moved_source_makes_another_digest(tmp_path: Path) -> None:
    clone = _make_clone(tmp_path)
    (tmp_path / "engine/core/a.cc").write_text("int table;")
    before = clone.sources_digest()
    (tmp_path / "engine/core/a.cc").rename(tmp_path / "engine/core/b.cc")
    assert clone.sources_digest() != before


def test_build_products_do_not_change_the_digest(tmp_path: Path) -> None:
    clone = _make_clone(tmp_path)
    before = clone.sources_digest()
    (tmp_path / "engine/embstore/_core.so").write_text("built")
    (tmp_path / "README.md").write_text("not part of an image")
    assert clone.sources_digest() == before
