"""The command line. Tests that need a guest use a fake QEMU."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from unittest import mock

import fake_qemu
import pytest

from pmemlab.cli import machine as machine_commands
from pmemlab.cli import main
from pmemlab.errors import MissingRequirementError
from pmemlab.model.devices import device_names, load_device
from pmemlab.results import results_console

LAB = Path(__file__).parents[2] / "lab"


@pytest.fixture(autouse=True)
def _signal_handler_restored() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Serves a guest, and yields its state folder."""
    with fake_qemu.served(monkeypatch, tmp_path):
        yield str(tmp_path)


def test_exec_passes_on_streams_and_status(
    served: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = "printf 'o\\377'; printf e >&2; exit 9"
    assert main(["machine", "exec", "--state-dir", served, "--", "sh", "-c", script]) == 9
    assert capfdbinary.readouterr() == (b"o\xff", b"e")


def test_exec_passes_the_environment(served: str, capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["machine", "exec", "--state-dir", served, "--env=ONE=a=b", "--"]
    assert main([*argv, "sh", "-c", "echo $ONE"]) == 0
    assert capfd.readouterr().out == "a=b\n"


def test_exec_returns_a_signal_as_shells_do(served: str) -> None:
    assert main(["machine", "exec", "--state-dir", served, "--", "sh", "-c", "kill -15 $$"]) == 143


def test_exec_distinguishes_a_lab_error_from_a_command_s_failure(
    served: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", "exec", "--state-dir", served, "--", "no-such-program"]) == 125
    assert capfd.readouterr().err.startswith("pmemlab: ")
    assert (
        main(["machine", "exec", "--state-dir", served, "--timeout=0.3", "--", "sleep", "60"])
        == 125
    )


@pytest.mark.parametrize("timeout", ["nan", "inf", "0", "-1", "soon", "1e300"])
def test_a_time_limit_is_a_number_of_seconds(
    timeout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", "exec", "dram", f"--timeout={timeout}", "--", "true"]) == 125
    assert (
        f"--timeout: {timeout}: must be a number above 0, a week at most" in capfd.readouterr().err
    )


def test_only_exec_exits_with_125_for_a_usage_error() -> None:
    assert main(["machine", "exec", "dram", "--no-such", "--", "true"]) == 125
    assert main(["machine", "exec", "--help"]) == 0
    assert main(["machine", "show"]) == 2


def test_a_name_that_is_too_long_for_a_file_is_a_one_line_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = 300 * "x"
    for argv in (["machine", "show", f"{name}.yaml"], ["report", name]):
        assert main(argv) == 2
        assert "File name too long: " in capfd.readouterr().err
    assert main(["machine", "show", name]) == 2
    assert "pmemlab: topology: there is no 'xxx" in capfd.readouterr().err


def test_a_full_disk_is_a_one_line_error_but_a_bug_is_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, is_told in ((errno.ENOSPC, True), (errno.EBADF, False)):
        failure = OSError(number, os.strerror(number), "/cache/kernel")
        monkeypatch.setattr(
            machine_commands, "running_machine_or_new_guest", mock.Mock(side_effect=failure)
        )
        if is_told:
            assert main(["machine", "show", "dram"]) == 2
            assert "pmemlab: [Errno 28] No space left on device: '/cache/kernel'" in (
                capfd.readouterr().err
            )
        else:
            with pytest.raises(OSError, match="/cache/kernel"):
                main(["machine", "show", "dram"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["machine", "exec", "dram"], "give the command after `--`"),
        (["machine", "exec", "--", "true"], "give either a machine or --state-dir"),
        (["machine", "exec", "dram", "--env", "ONE", "--", "true"], "must be NAME=VALUE"),
        (
            ["machine", "exec", "--state-dir", "/no/such", "--", "true"],
            "/no/such: no machine is served there",
        ),
        (["machine", "show", "dramm"], "there is no 'dramm'"),
        (["lab", "up", "dramm"], "there is no 'dramm'"),
        (["machine", "serve", "dramm", "--state-dir", "/tmp"], "there is no 'dramm'"),
    ],
)
def test_a_usage_error_is_told_in_a_line(
    argv: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == (125 if argv[1] == "exec" else 2)
    assert message in capfd.readouterr().err


def test_up_without_docker_names_the_address_that_it_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")
    assert main(["lab", "up"]) == 2
    message = capfd.readouterr().err
    assert message.startswith(
        f"pmemlab: no Docker engine answers at DOCKER_HOST, unix://{tmp_path}"
    )
    assert message.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="/proc/iomem shows its addresses to root alone")
def test_show_prints_the_output_of_the_guide_s_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_qemu.install(monkeypatch, tmp_path)
    region = '[{"dev": "region7", "size": 4096}]'
    programs = {
        "ndctl": f"[ \"$*\" = 'list -NR' ] && echo '{region}'",
        "numactl": 'echo "numactl with $*"',
    }
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(
        "pmemlab.machines.guest.machine.PROGRAM_PATH", f"{tmp_path}/bin:/usr/bin:/bin"
    )

    def no_docker() -> frozenset[str]:
        raise MissingRequirementError("no Docker engine answers", "make docker")

    monkeypatch.setattr("pmemlab.machines.container.machine.running_machines", no_docker)
    topology = tmp_path / "fake.yaml"
    kernel = fake_qemu.THIS_COMPUTER.proof["kernel"]
    topology.write_text(f"name: fake\nsummary: this computer\nproof: {{kernel: '{kernel}'}}\n")
    assert main(["machine", "show", str(topology)]) == 0
    out = capfd.readouterr().out
    assert region in out
    assert "numactl with -H" in out
    assert "PMemModule" in out


def test_pmemlab_test_passes_its_arguments_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def pytest_main(argv: list[str], _plugins: object) -> int:
        given.append(argv)
        return 5

    monkeypatch.setattr(pytest, "main", pytest_main)
    assert main(["test", "--pmemlab-topology", "dram", "-x"]) == 5
    assert given[0][-3:] == ["--pmemlab-topology", "dram", "-x"]


def _pmemlab(
    *argv: str, cwd: Path, code: str = "", stdout: int | IO[bytes] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Runs `pmemlab` in another process, after the test's own `code`."""
    script = f"{code}\nimport runpy, sys\nsys.argv[0] = 'pmemlab'\n"
    script += "runpy.run_module('pmemlab', run_name='__main__', alter_sys=True)"
    return subprocess.run(
        [sys.executable, "-c", script, *argv],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": f"{LAB}:{os.environ.get('PYTHONPATH', '')}",
            "PYTHONUNBUFFERED": "",  # else argparse itself fails on the closed pipe
        },
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def _collected(*argv: str, cwd: Path) -> set[str]:
    """Returns the folders whose tests `pmemlab test` would run."""
    done = _pmemlab("test", "--collect-only", "-q", *argv, cwd=cwd)
    return {line.split("/")[0] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.long
def test_pmemlab_test_collects_only_scenarios_in_every_folder_of_the_clone() -> None:
    # An option's value may equal a folder's name.
    cheap = f"--ignore={LAB.parent / 'scenarios' / 'servers'}"  # they import Keras
    assert _collected(cheap, "-k", "lab", cwd=LAB.parent) <= {"scenarios"}
    assert _collected(cheap, "-k", "scenarios", cwd=LAB) == {"scenarios"}


def test_pmemlab_test_collects_the_files_that_are_named() -> None:
    file = "tests/lab/test_agent.py"
    assert _collected(file, cwd=LAB.parent) == {"tests"}


def test_a_users_own_scenarios_need_no_clone(tmp_path: Path) -> None:
    shutil.copy(LAB.parent / "scenarios" / "dram.yaml", tmp_path / "mine.yaml")
    done = _pmemlab("test", "--collect-only", "-q", "mine.yaml", cwd=tmp_path)
    assert "mine.yaml::" in done.stdout, done.stdout + done.stderr
    assert "warning" not in done.stdout
    done = _pmemlab("test", cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{tmp_path} is not inside a clone of pmemlab" in done.stderr
    assert "name a scenario's file" in done.stderr
    settings = '[tool.pytest.ini_options]\npmemlab_scenarios = ["."]\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    done = _pmemlab("test", "--collect-only", "-q", cwd=tmp_path)
    assert "mine.yaml::" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("columns", [None, "0"])  # some programs set 0 for their children
def test_output_to_a_file_is_not_cut_to_a_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert main(["model", "devices"]) == 0
    printed = capsys.readouterr().out
    assert all(load_device(name).title in printed for name in device_names())


@pytest.mark.parametrize(
    "argv",
    [["model", "predict", "--gpus", "4", "--json"], ["report", "."], ["--version"], ["--help"]],
    ids=["much", "little", "version", "help"],
)
def test_a_closed_pipe_ends_a_command_without_a_traceback(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "results.json").write_text('{"sections": []}')
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = _pmemlab(*argv, cwd=tmp_path, stdout=closed)
    assert (done.returncode, done.stderr) == (1, "")


def test_letters_that_stdout_cannot_encode_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        results_console().print("2 × 3 ± 1")
        assert stdout.buffer.getvalue() == b"2 ? 3 ? 1\n"


def test_the_user_s_own_encoding_error_handler_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, "ascii", "backslashreplace", write_through=True) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        results_console().print("2 × 3")
        assert buffer.getvalue() == b"2 \\xd7 3\n"


def test_pmemlab_prints_its_version(tmp_path: Path) -> None:
    done = _pmemlab("--version", cwd=tmp_path)
    assert done.returncode == 0
    assert re.fullmatch(r"pmemlab ([0-9.]+|\(not installed\))\n", done.stdout)


PLAN_OPTIONS = ("--rows=9", "--dim=4", "--skew=1", "--lookups-per-s=9")
BLOCK_IMPORTS = """
import sys
class Without:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {without!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
"""


@pytest.mark.parametrize(
    ("package", "argv", "remedy", "status"),
    [
        ("rich", ["machine", "doctor"], "pip install 'pmemlab'", 2),
        ("pydantic", ["machine", "show", "dram"], "pip install 'pmemlab'", 2),
        ("yaml", ["machine", "exec", "dram", "--", "true"], "pip install 'pmemlab'", 125),
        ("docker", ["lab", "up"], "pip install 'pmemlab'", 2),
        ("pytest", ["test"], "pip install 'pmemlab'", 2),
        ("jinja2", ["report", "."], "pip install 'pmemlab[report]'", 2),
        ("matplotlib", ["report", "."], "pip install 'pmemlab[report]'", 2),
        ("embstore", ["model", "plan", *PLAN_OPTIONS], "make setup", 2),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, package: str, argv: list[str], remedy: str, status: int
) -> None:
    (tmp_path / "results.json").write_text('{"sections": []}')
    done = _pmemlab(*argv, cwd=tmp_path, code=BLOCK_IMPORTS.format(without=[package]))
    assert done.stderr.startswith("pmemlab: ")
    assert package in done.stderr
    assert remedy in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == status


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.long)])
def test_pytest_works_without_the_packages_that_only_the_lab_needs(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")
    without = ["rich", "pydantic", "pydantic_core", "yaml", "docker", "embstore"]
    code = BLOCK_IMPORTS.format(without=without)
    code += "import pytest; sys.exit(pytest.main())"
    done = _pmemlab("--pmemlab-machine", "process", *workers, cwd=tmp_path, code=code)
    assert "1 passed" in done.stdout
