"""Prepared modules: a server process imports them once, and runs each command in a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fake_qemu import LIMIT_S, wait_until

from pmemlab.machines.guest import prepared
from pmemlab.machines.guest.prepared import prepared_command

MODULE = """
import os, signal, sys, time
with open("{folder}/imports", "a") as file:
    file.write("imported\\n")
PREPARED = ("json",)
IMPORTED_WITH = os.environ.get("SETTING", "none")
runs = 0

def main():
    global runs
    runs += 1
    what, *rest = sys.argv[1:]
    if what == "tell":
        print(runs, rest, os.getcwd(), IMPORTED_WITH, "json" in sys.modules, flush=True)
        print("to stderr", file=sys.stderr)
        return 7
    if what == "read":
        print(sys.stdin.read().upper())
    if what == "raise":
        raise RuntimeError("as a module does")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait":
        print(os.getpid(), flush=True)
        time.sleep(60)

if __name__ == "__main__":
    sys.exit(main())
"""


class Prepared:
    """A folder of prepared modules, as a guest has it, and the commands that run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "XDG_RUNTIME_DIR": str(folder),
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
            "PYTHONFAULTHANDLER": "1",
        }
        self.write(MODULE.format(folder=folder))

    def write(self, source: str, module: str = "mine") -> None:
        (self.folder / f"{module}.py").write_text(source)

    def start(
        self, *arguments: str, module: str = "mine", options: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[str]:
        prepared_python = [sys.executable, "-S", "-E", prepared.__file__, *options]
        return subprocess.Popen(
            [*prepared_python, "-m", module, *arguments],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *arguments: str, module: str = "mine", options: Sequence[str] = (), **environment: str
    ) -> tuple[int, str, str]:
        process = self.start(*arguments, module=module, options=options, **environment)
        out, err = process.communicate("typed", timeout=LIMIT_S)
        return process.returncode, out, err

    def imports(self) -> int:
        return len((self.folder / "imports").read_text().splitlines())


@pytest.fixture
def guest_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepared]:
    monkeypatch.setattr(prepared, "FOLDER", str(tmp_path / "pmemlab-prepared"))
    yield Prepared(tmp_path)
    prepared.stop_servers()


def test_a_module_is_imported_once_and_each_run_is_like_the_first(
    guest_folder: Prepared,
) -> None:
    for words in (["a", "b"], ["c"], []):
        status, out, err = guest_folder.run("tell", *words)
        assert (status, err) == (7, "to stderr\n")
        assert out == f"1 {words} {guest_folder.folder} none True\n"
    assert guest_folder.imports() == 1


def test_a_module_reads_standard_input_and_its_streams_end_with_it(guest_folder: Prepared) -> None:
    assert guest_folder.run("read") == (0, "TYPED\n", "")
    assert guest_folder.run("read") == (0, "TYPED\n", "")


def test_an_exception_is_printed_and_gives_status_1(guest_folder: Prepared) -> None:
    for _ in range(2):
        status, _, err = guest_folder.run("raise")
        assert status == 1
        assert err.endswith("RuntimeError: as a module does\n")


def test_a_module_that_dies_by_a_signal_ends_its_command_by_that_signal(
    guest_folder: Prepared,
) -> None:
    assert guest_folder.run("kill")[0] == -signal.SIGKILL


def test_a_signal_to_the_command_reaches_the_module(guest_folder: Prepared) -> None:
    waiting = guest_folder.start("wait")
    assert waiting.stdout is not None
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGABRT)
    _, err = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == -signal.SIGABRT
    assert "mine.py" in err  # faulthandler's stack


def test_killing_a_command_kills_the_module_s_process(guest_folder: Prepared) -> None:
    waiting = guest_folder.start("wait")
    assert waiting.stdout is not None
    child = int(waiting.stdout.readline())
    waiting.kill()
    waiting.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists())
    waiting.stdout.close()
    for stream in (waiting.stdin, waiting.stderr):
        assert stream is not None
        stream.close()


def test_a_different_environment_imports_the_module_again(guest_folder: Prepared) -> None:
    assert "none" in guest_folder.run("tell")[1]
    assert "mine" in guest_folder.run("tell", SETTING="mine")[1]
    assert "none" in guest_folder.run("tell")[1]


def test_a_module_that_cannot_be_imported_is_an_error_and_others_still_run(
    guest_folder: Prepared,
) -> None:
    guest_folder.write("import no_such_module", module="broken")
    for _ in range(2):
        status, out, err = guest_folder.run("tell", module="broken")
        assert (status, out) == (1, "")
        assert "No module named 'no_such_module'" in err
        assert guest_folder.run("tell")[0] == 7


# Prints the pid of the server that runs it, and whether the server has imported `mine` and `site`.
PARENT = """
import os, sys

def main():
    with open(f"/proc/{os.getppid()}/stat") as file:
        server = file.read().rpartition(")")[2].split()[1]
    print(server, "mine" in sys.modules, "site" in sys.modules)
"""


def test_commands_with_the_same_options_share_one_server_process(
    guest_folder: Prepared,
) -> None:
    guest_folder.write(PARENT, module="other")
    alone = guest_folder.run(module="other")[1]
    guest_folder.run("tell")
    assert alone.split()[1:] == ["False", "True"]
    assert guest_folder.run(module="other")[1] == alone.replace("False", "True")


def test_commands_without_packages_have_a_server_that_imported_no_packages(
    guest_folder: Prepared,
) -> None:
    guest_folder.write(PARENT, module="other")
    guest_folder.run("tell")
    with_packages = guest_folder.run(module="other")[1].split()
    without = guest_folder.run(module="other", options=["-S"])[1].split()
    assert without[0] != with_packages[0]
    assert (with_packages[1:], without[1:]) == (["True", "True"], ["False", "False"])


def test_an_edited_module_is_imported_again_after_the_servers_were_stopped(
    guest_folder: Prepared,
) -> None:
    guest_folder.run("tell")
    guest_folder.write("def main():\n    print('edited')\n")
    prepared.stop_servers()
    assert guest_folder.run("tell")[1] == "edited\n"


PYTHON = "/venv/bin/python"
TABLES = ["-m", "pmemlab.workloads.tables"]
BY_FILE = [PYTHON, "-S", "-E", prepared.__file__]


@pytest.mark.parametrize(
    ("argv", "becomes"),
    [
        ([PYTHON, *TABLES, "--json"], [*BY_FILE, *TABLES, "--json"]),
        (["timeout", "5", PYTHON, *TABLES], ["timeout", "5", *BY_FILE, *TABLES]),
        (
            [PYTHON, "-S", "-m", "pmemlab.machines.guest.probe", "-m"],
            [*BY_FILE, "-S", "-m", "pmemlab.machines.guest.probe", "-m"],
        ),
        *(
            (argv, argv)
            for argv in (
                ["true"],
                [],
                [PYTHON],
                [PYTHON, "-m"],
                [PYTHON, "-c", "pass"],
                [PYTHON, "-m", "json.tool"],
                [PYTHON, "-O", *TABLES],
                [PYTHON, "-c", "pass", *TABLES],
                ["numactl", "--membind=1", PYTHON, *TABLES],
                ["python3", *TABLES],
                [PYTHON, "train.py", *TABLES],
            )
        ),
    ],
)
def test_only_a_plain_run_of_the_lab_s_own_modules_is_prepared(
    argv: list[str], becomes: list[str]
) -> None:
    assert prepared_command(argv, PYTHON) == becomes
