"""`pmemlab machine exec` in its own process: streams, signals and copies. QEMU is a fake."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

import fake_qemu
import pytest
from fake_qemu import LIMIT_S

from pmemlab.cli import main
from pmemlab.errors import LabError
from pmemlab.machines.copying import copy_in, copy_out
from pmemlab.machines.guest import agent, streams
from pmemlab.machines.guest.agent import INPUT_WINDOW, STDOUT
from pmemlab.machines.guest.control import attach
from pmemlab.machines.guest.machine import GuestMachine
from pmemlab.machines.protocol import Spawner

LAB = Path(__file__).parents[2] / "lab"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GuestMachine]:
    with fake_qemu.served(monkeypatch, tmp_path) as machine:
        yield machine


@pytest.fixture
def start(machine: GuestMachine, tmp_path: Path) -> Iterator[Start]:
    """Returns a function that runs a shell script in the served machine by `pmemlab machine exec`,
    and returns the process."""
    assert machine.kind == "guest"
    started: list[subprocess.Popen[bytes]] = []

    def start_one(script: str, *options: str) -> subprocess.Popen[bytes]:
        started.append(_exec(tmp_path, options, script))
        return started[-1]

    yield start_one
    for process in started:
        with process:  # closes its pipes, and waits for it
            process.kill()


def _exec(
    state: Path,
    options: Sequence[str],
    script: str,
    stdout: int | BinaryIO = subprocess.PIPE,
    closed: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts `pmemlab machine exec` with a shell script. closed: descriptors that it lacks."""

    def prepare() -> None:
        # Ctrl-C must work even if the parent of the tests ignores SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in closed:
            os.close(descriptor)

    return subprocess.Popen(
        [sys.executable, "-m", "pmemlab", "machine", "exec", "--state-dir", state, *options, "--",
         "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{LAB}:{os.environ.get('PYTHONPATH', '')}"},
        preexec_fn=prepare,
    )  # fmt: skip


def test_megabytes_of_input_come_back_through_a_command_unchanged(start: Start) -> None:
    sent = os.urandom(5 * INPUT_WINDOW + 7)
    out, err = start("cat").communicate(sent, LIMIT_S)
    assert (len(out), out == sent, err) == (len(sent), True, b"")


def test_input_and_output_are_passed_on_before_either_ends(start: Start) -> None:
    process = start("while read line; do echo got $line; done; echo no more; exit 7")
    assert process.stdin is not None
    assert process.stdout is not None
    for line in (b"one\n", b"two\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == b"got " + line
    process.stdin.close()
    assert process.stdout.read() == b"no more\n"
    assert process.wait(LIMIT_S) == 7


def test_a_command_ends_even_if_it_leaves_input_unread(start: Start) -> None:
    process = start("head -c 3; exec <&-; echo; echo left")
    out, _ = process.communicate(b"abc" + bytes(5 * INPUT_WINDOW), LIMIT_S)
    assert out == b"abc\nleft\n"
    assert process.returncode == 0


@pytest.mark.usefixtures("machine")
def test_unread_input_waits_on_the_host_and_not_in_the_guest(tmp_path: Path) -> None:
    with attach(tmp_path) as link:
        command = link.spawn(["sleep", "60"], {}, takes_input=True)
        sent = 0
        while command._sent_ahead < INPUT_WINDOW:
            sent += 1 << 16
            assert command.send_input(bytes(1 << 16))
        assert sent <= 2 * INPUT_WINDOW
        command.kill()
        assert [*command.output(LIMIT_S)] == []
        assert not command.send_input(b"too late")


def test_ctrl_c_reaches_the_command_and_its_status_comes_back(start: Start) -> None:
    process = start("trap 'echo interrupted; exit 3' INT; echo ready; sleep 60 & wait")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b"interrupted\n"
    assert process.wait(LIMIT_S) == 3


def test_ctrl_c_ends_a_command_without_a_handler_with_status_130(start: Start) -> None:
    process = start("echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130


def test_a_second_ctrl_c_kills_a_command_that_ignores_the_first(start: Start) -> None:
    process = start("trap 'echo no' INT; echo $$; while :; do sleep 0.1; done")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"no\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130
    assert not fake_qemu.is_running(pid)


def test_a_closed_output_pipe_ends_the_command(start: Start) -> None:
    process = start("echo $$ >&2; exec yes")
    assert process.stdout is not None
    assert process.stderr is not None
    pid = int(process.stderr.readline())
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""
    fake_qemu.wait_until(lambda: not fake_qemu.is_running(pid))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.usefixtures("machine")
def test_an_error_in_writing_the_output_ends_the_command(
    stream: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setitem(streams._DESCRIPTORS, getattr(agent, stream.upper()), full)
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}; echo lost; echo lost >&2; exec sleep 60"
    message = r"^the output can't be written: No space left on device$"
    with attach(tmp_path) as link, pytest.raises(LabError, match=message):
        streams.run_on_own_streams(lambda: link.spawn(["sh", "-c", script], {}), [])
    os.close(full)
    assert not fake_qemu.is_running(int(pid_file.read_text()))


@pytest.mark.usefixtures("machine")
def test_a_full_disk_is_a_one_line_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = _exec(tmp_path, [], "echo lost", stdout=full)
    _, err = process.communicate(timeout=LIMIT_S)
    assert err == b"pmemlab: the output can't be written: No space left on device\n"
    assert process.returncode == 125


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("closed", [{0}, {1}, {2}, {1, 2}, {0, 1, 2}])
def test_output_for_a_closed_descriptor_is_discarded(closed: set[int], tmp_path: Path) -> None:
    script = "cat; echo out; echo err >&2; exit 5"
    process = _exec(tmp_path, [], script, closed=closed)
    out, err = process.communicate(timeout=LIMIT_S)
    assert out == (b"" if 1 in closed else b"out\n")
    assert err == (b"" if 2 in closed else b"err\n")
    assert process.returncode == 5


@pytest.mark.usefixtures("machine")
def test_a_timeout_keeps_the_output_so_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pass_time = fake_qemu.controlled_clock(monkeypatch)

    def write(descriptor: int, data: bytes) -> None:
        write_all(descriptor, data)
        pass_time(30)

    write_all = streams.write_all
    monkeypatch.setattr(streams, "write_all", write)
    command = ["sh", "-c", "echo begun; sleep 60"]
    argv = ["machine", "exec", "--state-dir", str(tmp_path), "--timeout=30", "--", *command]
    assert main(argv) == 125
    out, err = capfd.readouterr()
    assert out == "begun\n"
    assert err.endswith("still running after 30 s, killed\n")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a subfolder, a program, a symbolic link and a file of two megabytes."""
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "large").write_bytes(os.urandom(2 << 20))
    (source / "program").write_text("#!/bin/sh\n")
    (source / "program").chmod(0o755)
    (source / "link").symlink_to("program")
    return source


def _assert_same(one: Path, other: Path) -> None:
    assert sorted(p.relative_to(one) for p in one.rglob("*")) == sorted(
        p.relative_to(other) for p in other.rglob("*")
    )
    large = Path("folder", "large")
    assert (one / large).read_bytes() == (other / large).read_bytes()
    assert os.access(other / "program", os.X_OK)
    assert (other / "link").readlink() == Path("program")


@pytest.mark.parametrize("copy", [copy_in, copy_out])
def test_a_folder_is_copied_under_a_new_name_and_into_a_folder(
    copy: Callable[..., None], machine: GuestMachine, source: Path, tmp_path: Path
) -> None:
    # The fake guest is this computer, so both directions use paths here.
    target = tmp_path / "copies"
    here, there = (Path, str) if copy is copy_in else (str, Path)
    copy(machine, here(source), there(target))
    _assert_same(source, target)
    copy(machine, here(source), there(target))
    _assert_same(source, target / "source")
    copy(machine, here(source / "program"), there(target / "renamed"))
    assert (target / "renamed").read_text() == "#!/bin/sh\n"


def test_a_copy_that_fails_is_an_error_that_names_the_path(
    machine: GuestMachine, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(LabError, match="no such file or folder to copy"):
        copy_in(machine, tmp_path / "none", "/tmp")
    with pytest.raises(LabError, match=r"no-such/.*make it first"):
        copy_in(machine, source, f"{tmp_path}/no-such/")
    with pytest.raises(LabError, match=r"can't be copied to .*no-such/x: tar: .*no-such"):
        copy_in(machine, source, f"{tmp_path}/no-such/x")
    with pytest.raises(LabError, match=r"can't be copied to .*: tar: .*none"):
        copy_out(machine, f"{tmp_path}/none", tmp_path / "x")
    with pytest.raises(LabError, match=r"there is no folder .*no-such; make it first"):
        copy_out(machine, str(source), tmp_path / "no-such" / "x")


def test_a_link_out_of_the_copy_is_refused(
    machine: GuestMachine, source: Path, tmp_path: Path
) -> None:
    for target in ("/etc", "../../elsewhere"):
        (source / "escape").symlink_to(target)
        with pytest.raises(LabError, match="escape is a link"):
            copy_out(machine, str(source), tmp_path / "copy")
        assert not (tmp_path / "copy" / "escape").exists()
        (source / "escape").unlink()


def test_setuid_bits_and_special_files_are_not_copied_out(
    machine: GuestMachine, source: Path, tmp_path: Path
) -> None:
    (source / "program").chmod(0o6777)
    copy_out(machine, str(source / "program"), tmp_path / "harmless")
    assert (tmp_path / "harmless").stat().st_mode & 0o7777 == 0o755
    os.mkfifo(source / "pipe")
    with pytest.raises(LabError, match="pipe is no file, folder or symbolic link"):
        copy_out(machine, str(source), tmp_path / "copy")


def test_an_archive_that_would_write_outside_the_copy_is_refused(tmp_path: Path) -> None:
    class Machine:
        def spawn(self, *_: object, **__: object) -> SimpleNamespace:
            written = io.BytesIO()
            with tarfile.open(mode="w", fileobj=written) as archive:
                for name in ("x", "x/../../elsewhere"):
                    archive.addfile(tarfile.TarInfo(name))
            return SimpleNamespace(
                returncode=0, output=lambda: (each for each in [(STDOUT, written.getvalue())])
            )

    (tmp_path / "folder").mkdir()
    with pytest.raises(LabError, match="would lie outside of the copy"):
        copy_out(cast(Spawner, Machine()), "/x", tmp_path / "folder" / "x")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("machine")
def test_exec_copies_in_before_the_command_and_out_after_it_even_if_it_fails(
    source: Path, tmp_path: Path
) -> None:
    argv = ["machine", "exec", "--state-dir", str(tmp_path), "--copy-in", f"{source}:{tmp_path}/in"]
    argv += ["--copy-out", f"{tmp_path}/in/program:{tmp_path}/out"]
    script = f"echo changed > {tmp_path}/in/program; exit 4"
    assert main([*argv, "--", "sh", "-c", script]) == 4
    assert (tmp_path / "out").read_text() == "changed\n"
    assert (source / "program").read_text() == "#!/bin/sh\n"


@pytest.mark.usefixtures("machine")
def test_cp_copies_to_and_from_a_served_machine(source: Path, tmp_path: Path) -> None:
    state = ["--state-dir", str(tmp_path)]
    assert main(["machine", "cp", *state, str(source), f":{tmp_path}/in"]) == 0
    assert main(["machine", "cp", *state, f":{tmp_path}/in", str(tmp_path / "back")]) == 0
    _assert_same(source, tmp_path / "back")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["machine", "cp", "a", "b"], "one of SOURCE and TARGET must be MACHINE:PATH"),
        (["machine", "cp", "dram:/a", "dram:/b"], "one of SOURCE and TARGET must be MACHINE:PATH"),
        (["machine", "cp", "a", ":/b"], "give either MACHINE:PATH, or --state-dir and :PATH"),
        (
            ["machine", "exec", "dram", "--copy-in", "a", "--", "true"],
            "--copy-in a: must be PATH:/PATH",
        ),
        (
            ["machine", "exec", "dram", "--copy-out", "a:b", "--", "true"],
            "--copy-out a:b: must be /PATH",
        ),
    ],
)
def test_a_wrong_copy_argument_is_told_in_a_line(
    argv: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) in (2, 125)
    assert message in capfd.readouterr().err
