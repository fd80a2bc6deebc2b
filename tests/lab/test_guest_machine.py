"""The life cycle of guests: boots, power cuts, failures, clean-up and clients. QEMU is a fake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import fake_qemu
import pytest
from fake_qemu import LIMIT_S

from pmemlab.cli import main
from pmemlab.errors import (
    CommandTimeoutError,
    LabError,
    MachineDiedError,
    ProofError,
    ProvisionError,
)
from pmemlab.machines.guest.agent import OUTPUT_WINDOW, SPAWN
from pmemlab.machines.guest.control import ControlServer, attach
from pmemlab.machines.guest.machine import GuestMachine, open_guest_machine
from pmemlab.machines.protocol import Booting, Spawner
from pmemlab.machines.state_folder import StateFolder
from pmemlab.topology import ProvisionStep

TOPOLOGY = fake_qemu.THIS_COMPUTER


@pytest.fixture(autouse=True)
def _fake_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_qemu.install(monkeypatch, tmp_path)


@pytest.fixture
def machine() -> Iterator[GuestMachine]:
    with open_guest_machine(TOPOLOGY) as machine:
        yield machine


@pytest.fixture(params=["its own", "served"])
def spawner(
    request: pytest.FixtureRequest, machine: GuestMachine, tmp_path: Path
) -> Iterator[Spawner]:
    """The guest as its owner reaches it, and as a client of `machine serve` does."""
    if request.param == "its own":
        yield machine
        return
    with ControlServer(tmp_path, machine), attach(tmp_path) as link:
        yield link


def test_a_guest_is_handed_out_with_its_proof(machine: GuestMachine) -> None:
    assert machine.proof.proved == {"kernel": os.uname().release}
    assert machine.facts()["kernel"] == os.uname().release
    assert set(machine.proof.seconds) == {"boot", "provision", "proof"}


def test_death_by_a_signal_is_a_negative_status(machine: GuestMachine) -> None:
    assert machine.run(["sh", "-c", "kill -9 $$"]).returncode == -9


def test_megabytes_of_output_arrive_whole(machine: GuestMachine) -> None:
    result = machine.run([sys.executable, "-c", "print('x' * 5_000_000); print('end')"])
    assert len(result.stdout) == 5_000_005
    assert result.stdout.endswith("x\nend\n")


def test_output_left_in_the_pipes_arrives_after_the_command_has_ended(
    machine: GuestMachine,
) -> None:
    # The agent is stopped until the command has ended and left a large, full pipe.
    program = """
import fcntl, os, signal, time
agent = os.getppid()
if os.fork():
    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.kill(agent, signal.SIGSTOP)
    os.write(1, bytes(1 << 20))
else:
    time.sleep(0.5)
    os.kill(agent, signal.SIGCONT)
"""
    assert machine.run([sys.executable, "-c", program]).stdout == "\0" * (1 << 20)


@pytest.mark.parametrize("stream", [1, 2])
def test_unread_output_blocks_the_command(
    stream: int, spawner: Spawner, machine: GuestMachine, tmp_path: Path
) -> None:
    count, piece = 256, 1 << 16  # 16 MiB
    program = f"""
import os
for number in range({count}):
    os.write({stream}, bytes({piece}))
    open({str(tmp_path / "written")!r}, "a").write(".")
"""
    pieces = spawner.spawn([sys.executable, "-c", program], {}).output(timeout=30)
    _, data = next(pieces)
    time.sleep(1)
    # Each process on the way may hold a window.
    assert (tmp_path / "written").stat().st_size * piece < 3 * OUTPUT_WINDOW
    assert machine.run(["echo", "others run"]).stdout == "others run\n"
    assert len(data) + sum(len(data) for _, data in pieces) == count * piece


def test_a_command_that_is_blocked_on_unread_output_can_be_killed(spawner: Spawner) -> None:
    pieces = spawner.spawn(["sh", "-c", "echo $$; exec cat /dev/zero"], {}).output(timeout=30)
    _, data = next(pieces)
    time.sleep(0.5)
    pieces.close()
    assert not fake_qemu.is_running(int(data.partition(b"\n")[0]))


def test_a_guest_that_dies_because_its_media_filled_the_disk_says_so(
    machine: GuestMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("pmemlab.machines.guest.qemu.shutil.disk_usage", lambda _: full)
    threading.Timer(0.5, os.kill, (machine.pid, signal.SIGBUS)).start()
    with pytest.raises(MachineDiedError, match=f"{tmp_path}.* is full; make room, or set TMPDIR"):
        machine.run(["sleep", "60"])


def test_commands_run_side_by_side(machine: GuestMachine) -> None:
    with ThreadPoolExecutor(8) as pool:
        echoes = [pool.submit(machine.run, ["sh", "-c", f"sleep 0.2; echo {i}"]) for i in range(8)]
        assert [echo.result().stdout for echo in echoes] == [f"{i}\n" for i in range(8)]


def test_a_command_s_environment_overrides_the_topology_s() -> None:
    topology = replace(TOPOLOGY, environment={"ONE": "1", "TWO": "topology"})
    with open_guest_machine(topology) as machine:
        result = machine.run(["sh", "-c", 'echo "$ONE $TWO $HOME"'], env={"TWO": "command"})
    assert result.stdout == "1 command /root\n"


def test_a_timeout_kills_the_command_and_keeps_what_it_wrote(
    machine: GuestMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time = fake_qemu.controlled_clock(monkeypatch)
    command = ["sh", "-c", "setsid sleep 60 & sleep 60 & echo $$; wait"]
    with pytest.raises(CommandTimeoutError, match="still running after 30 s") as caught:
        machine.run(command, timeout=30, on_line=lambda _: pass_time(30))
    assert not fake_qemu.is_running(int(caught.value.stdout))
    assert machine.run(["echo", "alive"]).stdout == "alive\n"


def test_a_guest_that_dies_is_a_lab_error_with_its_console(machine: GuestMachine) -> None:
    threading.Timer(0.5, os.kill, (machine.pid, signal.SIGKILL)).start()
    started = time.monotonic()
    with pytest.raises(MachineDiedError, match="went down while a command ran") as caught:
        machine.run(["sleep", "60"])
    assert time.monotonic() - started < 30
    assert fake_qemu.CONSOLE in str(caught.value)
    with pytest.raises(MachineDiedError):
        machine.run(["true"])


def test_a_guest_that_hangs_is_a_lab_error(
    machine: GuestMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.link, "_silence_s", 0.5)
    os.kill(machine.pid, signal.SIGSTOP)
    with pytest.raises(MachineDiedError, match=r"has not answered for 0\.5 s"):
        machine.run(["sleep", "60"])


def test_a_slow_command_does_not_count_as_a_hang(
    machine: GuestMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.link, "_silence_s", 1.0)
    assert machine.run(["sleep", "2"]).returncode == 0


def test_time_in_which_the_owner_is_stopped_does_not_count_as_a_hang(tmp_path: Path) -> None:
    program = """
from pmemlab.machines.guest.machine import open_guest_machine
with open_guest_machine(fake_qemu.THIS_COMPUTER) as machine:
    machine.link._silence_s = 0.9
    told = lambda line: print(line, flush=True)
    machine.run(["sh", "-c", "echo begun; sleep 4; echo done"], on_line=told)
"""
    with _python(program, str(tmp_path)) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "begun\n"
        time.sleep(0.1)
        owner.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        owner.send_signal(signal.SIGCONT)
        assert owner.communicate(timeout=LIMIT_S) == ("done\n", "")


def test_a_power_cut_kills_the_guest_at_once(machine: GuestMachine) -> None:
    pid = machine.pid
    machine.power_cut()
    assert not fake_qemu.is_running(pid)
    with pytest.raises(MachineDiedError, match="power cut"):
        machine.run(["true"])


def _steps(log: Path) -> tuple[ProvisionStep, ...]:
    return (
        ProvisionStep(f"echo loads >> {log}"),
        ProvisionStep(f"echo formats >> {log}", formats=True),
        ProvisionStep(f"echo mounts >> {log}"),
    )


def test_a_guest_boots_again_on_the_same_media_and_formats_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    topology = replace(TOPOLOGY, provision=_steps(log), backing_files={"dimm": 4096})
    with open_guest_machine(topology) as machine:
        (medium,) = tmp_path.glob("pmemlab-machine-*/dimm.img")
        medium.write_text("kept")
        assert log.read_text().split() == ["loads", "formats", "mounts"]
        first = machine.pid
        for _ in range(2):
            log.unlink()
            machine.power_cut()
            assert not fake_qemu.is_running(machine.pid)
            machine.power_on()
            assert log.read_text().split() == ["loads", "mounts"]
            assert medium.read_text() == "kept"
            assert machine.run(["echo", "up"]).stdout == "up\n"
        assert machine.pid != first
    assert not fake_qemu.is_running(machine.pid)


def test_without_media_files_the_formatting_steps_run_again_after_a_power_cut(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with open_guest_machine(replace(TOPOLOGY, provision=_steps(log))) as machine:
        machine.power_cut()
        machine.power_on()
    assert log.read_text().split() == ["loads", "formats", "mounts"] * 2


def test_a_guest_is_proved_again_after_a_power_cut(
    machine: GuestMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.power_cut()
    monkeypatch.setattr(
        "pmemlab.machines.guest.machine.read_facts", lambda _: {"kernel": "another"}
    )
    with pytest.raises(ProofError, match="kernel: expected"):
        machine.power_on()
    assert not fake_qemu.is_running(machine.pid)
    with pytest.raises(MachineDiedError, match=r"(?s)did not come up.*kernel: expected"):
        machine.run(["true"])


def test_a_command_ends_with_the_boot_that_it_ran_in(machine: GuestMachine) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(machine.run, ["sleep", "60"])
        time.sleep(0.3)
        machine.power_cut()
        machine.power_on()
        with pytest.raises(MachineDiedError, match="has had its power cut"):
            running.result(timeout=LIMIT_S)
    assert machine.run(["true"]).returncode == 0


def test_stop_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    machine = open_guest_machine(replace(TOPOLOGY, backing_files={"dimm": 1 << 20}))
    folders = list(tmp_path.glob("pmemlab-machine-*"))
    assert [(folder / "dimm.img").stat().st_size for folder in folders] == [1 << 20]
    pid = machine.pid
    machine.stop()
    machine.stop()
    assert not fake_qemu.is_running(pid)
    assert not list(tmp_path.glob("pmemlab-machine-*"))


def test_a_caller_s_own_state_folder_is_emptied_but_not_removed(tmp_path: Path) -> None:
    state = tmp_path / ("a folder, with a long name" * 8)
    state.mkdir()
    with open_guest_machine(replace(TOPOLOGY, backing_files={"dimm": 4096}), state):
        assert (state / "dimm.img").is_file()
        with pytest.raises(LabError, match="another machine is using it"):
            open_guest_machine(TOPOLOGY, state)
    assert list(state.iterdir()) == []


def test_a_running_machine_s_folder_is_not_removed_as_stale(tmp_path: Path) -> None:
    with open_guest_machine(TOPOLOGY) as machine:
        for folder in tmp_path.glob("pmemlab-machine-*"):
            os.utime(folder, (0, 0))
        with open_guest_machine(TOPOLOGY):
            assert machine.run(["true"]).returncode == 0
            assert len(list(tmp_path.glob("pmemlab-machine-*"))) == 2


@pytest.mark.parametrize("when", ["before QEMU", "while it boots"])
def test_a_boot_that_is_stopped_ends_at_once_and_leaves_nothing(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    boots = f'case "$*" in *-smp*) echo $$ > {pids}; exec sleep 600; esac'
    fake_qemu.install(monkeypatch, tmp_path, f"#!/bin/sh\n{boots}\n")

    def stop(booting: Booting) -> None:
        if when == "before QEMU":
            booting.stop()
        else:
            threading.Thread(target=stop_once_it_runs, args=(booting,)).start()

    def stop_once_it_runs(booting: Booting) -> None:
        fake_qemu.wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        booting.stop()

    with pytest.raises(MachineDiedError, match="is stopped"):
        open_guest_machine(TOPOLOGY, on_boot=stop)
    assert pids.exists() == (when == "while it boots")
    assert not pids.exists() or not fake_qemu.is_running(int(pids.read_text()))
    assert not list(tmp_path.glob("pmemlab-machine-*"))


def test_a_guest_that_fails_its_proof_is_not_handed_out(tmp_path: Path) -> None:
    topology = replace(TOPOLOGY, proof={"kernel": os.uname().release, "distances.0.0": 17})
    with pytest.raises(ProofError, match=r"distances\.0\.0: expected 17, found 10") as caught:
        open_guest_machine(topology)
    assert [mismatch.fact for mismatch in caught.value.mismatches] == ["distances.0.0"]
    assert not list(tmp_path.glob("pmemlab-machine-*"))


def test_a_failed_provisioning_command_is_an_error_with_its_output() -> None:
    steps = (ProvisionStep("true"), ProvisionStep("echo no free region >&2; exit 3"))
    topology = replace(TOPOLOGY, provision=steps)
    with pytest.raises(ProvisionError, match=r"(?s)status 3: no free region"):
        open_guest_machine(topology)


def test_a_qemu_that_refuses_its_arguments_is_an_error_with_its_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_qemu.install(monkeypatch, tmp_path, "#!/bin/sh\necho -device: no such thing >&2; exit 1\n")
    with pytest.raises(MachineDiedError, match=r"(?s)before it was up.*status 1.*no such thing"):
        open_guest_machine(TOPOLOGY)


def test_media_that_do_not_fit_are_refused_before_anything_starts() -> None:
    with pytest.raises(LabError, match="TMPDIR"):
        open_guest_machine(replace(TOPOLOGY, backing_files={"dimm": 1 << 60}))


def test_a_guest_outlives_the_thread_that_started_it() -> None:
    opened: list[GuestMachine] = []
    thread = threading.Thread(target=lambda: opened.append(open_guest_machine(TOPOLOGY)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with opened[0] as machine:
        assert machine.run(["true"]).returncode == 0


def _python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a Python process in which QEMU is a fake too."""
    here = Path(__file__).parent
    prologue = f"""
import sys, tempfile
from pathlib import Path
sys.path[:0] = [{str(here)!r}, {str(here.parents[1] / "lab")!r}]
import fake_qemu, pytest
folder = Path(sys.argv.pop(1))
fake_qemu.install(pytest.MonkeyPatch(), folder)
"""
    return subprocess.Popen(
        [sys.executable, "-c", prologue + program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_guest_dies_with_its_owner(tmp_path: Path) -> None:
    program = """
from pmemlab.machines.guest.machine import open_guest_machine
print(open_guest_machine(fake_qemu.THIS_COMPUTER).pid, flush=True)
import time; time.sleep(60)
"""
    with _python(program, str(tmp_path)) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert fake_qemu.is_running(pid)
        owner.kill()
    fake_qemu.wait_until(lambda: not fake_qemu.is_running(pid))


_SERVE = """
from pmemlab.machines.guest.serve import serve
from pmemlab.errors import LabError
try:
    serve(fake_qemu.THIS_COMPUTER, Path(sys.argv[1]))
except LabError as error:
    sys.exit(str(error))
"""


@contextmanager
def _served(
    folder: Path, program: str, *arguments: str, end: signal.Signals = signal.SIGTERM
) -> Iterator[Path]:
    """Serves a guest from another process, and yields its state folder. Finally ends the process
    by a signal, and checks that it left nothing."""
    state = folder / "state"
    with _python(program, str(folder), str(state), *arguments) as server:
        fake_qemu.wait_until((state / "proof.json").exists)
        yield state
        server.send_signal(end)
        _, stderr = server.communicate(timeout=LIMIT_S)
    assert (server.returncode, stderr) == (0, "")
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_cleanly_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with _served(tmp_path, _SERVE, end=number) as state, attach(state) as link:
        assert link.run(["echo", "attached"], {}).stdout == "attached\n"


def test_serve_ends_with_its_guest(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with _python(_SERVE, str(tmp_path), str(state)) as server:
        fake_qemu.wait_until(lambda: (state / "proof.json").exists())
        with attach(state) as link, pytest.raises(LabError):
            link.run(["sh", "-c", "kill -9 $PPID"], {}, timeout=LIMIT_S)  # the agent is its parent
        _, stderr = server.communicate(timeout=LIMIT_S)
    assert server.returncode == 1
    assert "ended by itself" in stderr
    assert list(state.iterdir()) == []


def _switch(state: Path, to: str) -> int:
    return main(["machine", "power", to, "--state-dir", str(state)])


def test_a_served_guest_s_power_is_switched_by_command(tmp_path: Path) -> None:
    with _served(tmp_path, _SERVE) as state:
        proof, cut = state / "proof.json", state / "power-cut"
        with attach(state) as link:
            running = link.spawn(["sleep", "60"], {})
            assert _switch(state, "cut") == 0
            with pytest.raises(MachineDiedError, match="has had its power cut"):
                list(running.output(timeout=LIMIT_S))
            assert (proof.exists(), cut.exists()) == (False, True)
            with pytest.raises(MachineDiedError, match="has had its power cut"):
                link.run(["true"], {})
            assert _switch(state, "on") == 0
            assert (proof.exists(), cut.exists()) == (True, False)
            assert link.run(["echo", "up"], {}).stdout == "up\n"
        assert _switch(state, "on") == 2  # it has power
        assert _switch(state, "cut") == 0


_SERVE_A_GUEST_THAT_MAY_FAIL = """
from dataclasses import replace
from pmemlab.errors import LabError
from pmemlab.machines.guest import machine
from pmemlab.machines.guest.serve import serve

true_facts = machine.read_facts

def read_facts(guest):
    if Path(sys.argv[2]).exists():
        raise LabError("its file system is full")
    return true_facts(guest)

machine.read_facts = read_facts
serve(replace(fake_qemu.THIS_COMPUTER, backing_files={"dimm": 1 << 20}), Path(sys.argv[1]))
"""


def test_a_served_guest_that_fails_to_boot_again_keeps_its_media(tmp_path: Path) -> None:
    full = tmp_path / "full"
    with _served(tmp_path, _SERVE_A_GUEST_THAT_MAY_FAIL, str(full)) as state:
        (state / "dimm.img").write_bytes(b"rows")
        assert _switch(state, "cut") == 0
        full.touch()
        for _ in range(2):
            assert _switch(state, "on") == 2
            assert (state / "power-cut").exists()
        full.unlink()
        assert _switch(state, "on") == 0
        with attach(state) as link:
            assert link.run(["echo", "up"], {}).stdout == "up\n"
        assert (state / "dimm.img").read_bytes() == b"rows"


def test_a_served_guest_that_never_boots_again_ends_cleanly_by_a_signal(tmp_path: Path) -> None:
    full = tmp_path / "full"
    with _served(tmp_path, _SERVE_A_GUEST_THAT_MAY_FAIL, str(full)) as state:
        full.touch()
        assert _switch(state, "cut") == 0
        assert _switch(state, "on") == 2


@pytest.mark.parametrize("name", ["dimm.img", "lock", "console.log"])
def test_a_user_s_files_with_a_machine_s_file_names_are_not_overwritten(
    tmp_path: Path, name: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / name).write_text("mine")
    with pytest.raises(LabError, match=rf"a machine would overwrite \({name}\), .* another folder"):
        StateFolder(state, is_temporary=False)
    assert [(file.name, file.read_text()) for file in state.iterdir()] == [(name, "mine")]


def _kill_an_owner(make: str, path: Path) -> None:
    """Runs a process that makes a state folder by `make`, an expression in `path`, and dies without
    a clean-up."""
    program = f"""
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pmemlab.machines.state_folder import StateFolder
path = Path(sys.argv[2])
folder = {make}
(folder.path / "dimm.img").touch()
os.utime(folder.path, (0, 0))
os._exit(9)
"""
    lab = str(Path(__file__).parents[2] / "lab")
    subprocess.run([sys.executable, "-c", program, lab, str(path)], check=False)


def test_the_state_folder_of_a_killed_machine_is_taken_over(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "serve.out").touch()
    _kill_an_owner("StateFolder(path, is_temporary=False)", state)
    assert {file.name for file in state.iterdir()} == {"dimm.img", "lock", "serve.out"}
    folder = StateFolder(state, is_temporary=False)
    folder.release("dimm.img")
    assert list(state.iterdir()) == [state / "serve.out"]


@pytest.mark.parametrize("theirs", ["a file", "nothing", "a pipe"])
def test_a_folder_with_a_temporary_folder_s_name_stays_if_no_machine_made_it(
    tmp_path: Path, theirs: str
) -> None:
    folder = tmp_path / "pmemlab-machine-theirs"
    folder.mkdir()
    (folder / "precious").touch()
    if theirs == "a pipe":
        os.mkfifo(folder / "lock")
    else:
        (folder / "lock").write_text("mine" if theirs == "a file" else "")
    os.utime(folder, (0, 0))
    StateFolder.temporary(tmp_path).release()
    assert (folder / "precious").exists()


def test_the_next_machine_removes_the_temporary_folder_of_a_killed_machine(
    tmp_path: Path,
) -> None:
    _kill_an_owner("StateFolder.temporary(path)", tmp_path)
    assert len(list(tmp_path.glob("pmemlab-machine-*"))) == 1
    StateFolder.temporary(tmp_path).release()
    assert not list(tmp_path.glob("pmemlab-machine-*"))


def test_an_attached_client_gets_the_same_results_as_the_owner(
    machine: GuestMachine, tmp_path: Path
) -> None:
    state = tmp_path / ("far" * 60)
    state.mkdir()
    with ControlServer(state, machine), attach(state) as link:
        result = link.run(["sh", "-c", "echo $ONE; echo err >&2; exit 3"], {"ONE": "1"})
        assert (result.returncode, result.stdout, result.stderr) == (3, "1\n", "err\n")
        with pytest.raises(LabError, match="no-such-program"):
            link.run(["no-such-program"], {})
        with pytest.raises(CommandTimeoutError):
            link.run(["sleep", "60"], {}, timeout=0.3)
    assert list(state.iterdir()) == []


def test_a_client_s_commands_end_when_it_disconnects(machine: GuestMachine, tmp_path: Path) -> None:
    with ControlServer(tmp_path, machine):
        with attach(tmp_path) as link:
            output = link.spawn(["sh", "-c", "echo $$; exec sleep 60"], {}).output()
            _, data = next(output)
        fake_qemu.wait_until(lambda: not fake_qemu.is_running(int(data)))


def test_a_client_gets_an_error_for_a_command_that_cannot_be_run(
    machine: GuestMachine, tmp_path: Path
) -> None:
    with ControlServer(tmp_path, machine), attach(tmp_path) as link:
        request = json.dumps({"argv": [], "env": {}, "input": False}).encode()
        with pytest.raises(LabError, match="argv is empty"):
            list(link._begin(SPAWN, request).output(timeout=LIMIT_S))
        assert link.run(["echo", "alive"], {}).stdout == "alive\n"


def test_attaching_to_a_folder_without_a_server_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="pmemlab machine serve TOPOLOGY"), attach(tmp_path):
        pass
