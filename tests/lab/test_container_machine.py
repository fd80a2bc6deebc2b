"""A machine in a container: its commands' ends, and its own. The Docker engine is played here."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from recorded_facts import recorded_facts
from requests import ReadTimeout

from pmemlab.cli import reach
from pmemlab.errors import CommandTimeoutError, LabError, MachineDiedError, ProofError
from pmemlab.machines.container import labels
from pmemlab.machines.container import machine as container_machine
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.given_topology import label_of
from pmemlab.machines.container.health import has_its_power_cut, is_proved, wait_until_proved
from pmemlab.machines.container.inventory import owner_label, sweep_abandoned
from pmemlab.machines.container.machine import (
    ContainerMachine,
    open_container_machine,
    runs_in_the_lab,
)
from pmemlab.machines.lease import Lease
from pmemlab.machines.protocol import Booting
from pmemlab.proof import Proof
from pmemlab.topology import Topology, load_topology

PROOF = Proof("dram", "tcg", {"nodes": [0]}, {"nodes": [0]})

STDOUT, STDERR = 1, 2


class Engine:
    """A Docker engine with one container, in which a test says what a command does."""

    def __init__(self) -> None:
        self.status = "running"
        self.health = "healthy"
        self.exists = True
        self.removed = False
        self.commands: list[list[str]] = []
        self._ours, self._theirs = socket.socketpair()
        self.exit_code: int | None = None
        self.has_power = True
        self.has_proof = False
        self.switches: list[str] = []
        self.power_status = 0
        self.restarts = 0
        self.container = cast(Container, _Container(self))
        self.client = cast(docker.DockerClient, SimpleNamespace(api=self, close=lambda: None))

    def write(self, stream: int, data: bytes) -> None:
        """What the command writes, framed as the engine does it."""
        self._ours.sendall(struct.pack(">BxxxL", stream, len(data)) + data)

    def end_command(self, exit_code: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        self.exit_code = exit_code
        self.write(STDOUT, stdout)
        self.write(STDERR, stderr)
        self._ours.close()

    def has_hung_up(self) -> bool:
        """Whether the command's user is gone, which ends it."""
        self._ours.settimeout(5)
        return self._ours.recv(1) == b""

    def die(self) -> None:
        """The container ends, and its command with it."""
        self.status = "exited"
        self.end_command(137)

    def exec_create(self, _container: str, argv: Sequence[str], stdin: bool) -> dict[str, str]:
        assert stdin, "or a command would not notice that its user is gone"
        if self.status != "running":
            raise APIError("is not running")
        if argv[-6:-3] == ["pmemlab", "machine", "power"]:
            self.switches.append(argv[-3])
            self.has_power = argv[-3] == "on" and not self.power_status
            return {"Id": "power"}
        self.commands.append(list(argv))
        return {"Id": "1"}

    def exec_start(self, command: str, **_: bool) -> socket.socket:
        if command != "power":
            return self._theirs
        ours, theirs = socket.socketpair()
        with ours:
            words = b"pmemlab: no such region" if self.power_status else b""
            ours.sendall(struct.pack(">BxxxL", STDERR, len(words)) + words)
        return theirs

    def exec_inspect(self, command: str) -> dict[str, object]:
        if command == "power":
            return {"Running": False, "ExitCode": self.power_status}
        return {"Running": self.exit_code is None, "ExitCode": self.exit_code}


class _Container:
    name = "lab_dram_1"
    id = "c0ffee"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.labels: dict[str, str] = {}

    @property
    def status(self) -> str:
        return self._engine.status

    @property
    def attrs(self) -> dict[str, Any]:
        return {"State": {"Health": {"Status": self._engine.health}}}

    def reload(self) -> None:
        if not self._engine.exists:
            raise NotFound("no such container")

    def logs(self, tail: int) -> bytes:
        return f"the last {tail} lines".encode()

    def exec_run(self, argv: Sequence[str]) -> SimpleNamespace:
        if argv[0] == "test" and argv[-1].endswith("/proof.json"):
            return SimpleNamespace(exit_code=int(not self._engine.has_proof))
        if argv[0] == "test":
            return SimpleNamespace(exit_code=int(self._engine.has_power))
        return SimpleNamespace(output=json.dumps(asdict(PROOF)).encode())

    def restart(self, timeout: int) -> None:
        assert timeout == 0
        self._engine.restarts += 1
        self._engine.has_power = True
        self._engine.status = "running"

    def remove(self, **_: bool) -> None:
        self._engine.removed, self._engine.exists = True, False


@pytest.fixture
def engine() -> Engine:
    return Engine()


def machine_of(engine: Engine, owned: bool = False) -> ContainerMachine:
    return ContainerMachine(engine.client, load_topology("dram"), engine.container, owned)


def test_a_commands_streams_and_status_come_back(engine: Engine) -> None:
    engine.end_command(3, b"out\n", b"err\n")
    result = machine_of(engine).run(["true"])
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_its_facts_are_read_again_when_it_is_proved_again(engine: Engine) -> None:
    """A container may have been up for hours, and somebody in it meanwhile."""
    facts = recorded_facts("dram") | {"kernel": "6.1.0-later"}
    engine.end_command(0, json.dumps(facts).encode())
    machine = machine_of(engine)
    machine.prove()
    assert machine.facts()["kernel"] == "6.1.0-later"
    (argv,) = engine.commands
    assert "pmemlab.machines.guest.probe" in argv


def test_a_machine_that_is_another_by_now_is_the_lab_s_fault(engine: Engine) -> None:
    engine.end_command(0, json.dumps(recorded_facts("dram") | {"nodes": [0, 1]}).encode())
    with pytest.raises(ProofError, match=r"nodes: expected \[0\], found \[0, 1\]"):
        machine_of(engine).prove()


def test_its_lease_ends_when_it_is_stopped(engine: Engine, tmp_path: Path) -> None:
    lease = Lease(tmp_path / "dram.lock")
    machine = ContainerMachine(
        engine.client, load_topology("dram"), engine.container, owned=False, lease=lease
    )
    with pytest.raises(LabError, match="dram of the running lab is used by process"):
        Lease(tmp_path / "dram.lock", limit_s=0)
    machine.stop()
    Lease(tmp_path / "dram.lock", limit_s=0).end()


def test_a_command_goes_through_the_machines_own_door(engine: Engine) -> None:
    engine.end_command(0)
    machine_of(engine).run(["numactl", "-H"], env={"A": "b c"})
    (argv,) = engine.commands
    door = ["pmemlab", "machine", "exec", "--state-dir", "/run/pmemlab", "--env=A=b c", "--"]
    assert argv[-9:] == [*door, "numactl", "-H"]


def test_a_command_that_a_signal_ended_has_its_negative_number(engine: Engine) -> None:
    engine.end_command(128 + 11)
    assert machine_of(engine).run(["crash"]).returncode == -11


def test_bytes_that_are_no_text_come_through(engine: Engine) -> None:
    engine.end_command(0, b"\xff")
    stdout = machine_of(engine).run(["cat"]).stdout
    assert stdout.encode(errors="surrogateescape") == b"\xff"


def test_a_command_past_its_timeout_is_killed(engine: Engine) -> None:
    engine.write(STDOUT, b"so far")
    with pytest.raises(CommandTimeoutError, match=r"still running after 0\.2 s") as caught:
        machine_of(engine).run(["sleep", "60"], timeout=0.2)
    assert caught.value.stdout == "so far"
    assert engine.has_hung_up()


def test_a_container_that_dies_under_a_command_is_a_lab_error_within_seconds(
    engine: Engine,
) -> None:
    machine = machine_of(engine)
    threading.Timer(0.1, engine.die).start()
    began = time.monotonic()
    with pytest.raises(MachineDiedError, match=r"(?s)ended while a command ran.*the last \d+ line"):
        machine.run(["sleep", "60"])
    assert time.monotonic() - began < 3


def test_a_container_that_is_removed_under_a_command_is_a_lab_error(engine: Engine) -> None:
    def vanish() -> None:
        engine.exists = False

    machine = machine_of(engine)
    threading.Timer(0.1, vanish).start()  # and the stream stays open
    with pytest.raises(MachineDiedError, match="ended while a command ran"):
        machine.run(["sleep", "60"])


def test_an_engine_that_is_too_busy_to_tell_of_the_container_costs_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def too_late() -> None:
        looks.append(time.monotonic())
        if len(looks) == 2:
            engine.end_command(0, b"done\n")
        raise ReadTimeout("read timed out")

    machine = machine_of(engine)
    monkeypatch.setattr(engine.container, "reload", too_late)
    assert machine.run(["sleep", "60"]).stdout == "done\n"
    assert len(looks) >= 2


@pytest.mark.parametrize("error", [APIError("no space left"), ReadTimeout("read timed out")])
def test_an_engine_that_gives_no_machine_is_the_lab_s_fault(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(container_machine, "connect", lambda: None)
    monkeypatch.setattr(container_machine, "find_clone", lambda: Clone(tmp_path))
    monkeypatch.setattr(container_machine, "sweep_abandoned", refuse)
    with pytest.raises(LabError, match=f"the Docker engine: {error}"):
        open_container_machine(load_topology("dram"))


def test_a_command_that_kills_itself_is_no_dead_machine(engine: Engine) -> None:
    engine.end_command(137)
    assert machine_of(engine).run(["suicide"]).returncode == -9


def test_a_lab_error_in_the_container_is_one_outside(engine: Engine) -> None:
    engine.end_command(125, stderr=b"pmemlab: nonesuch: can't be run: no such file\n")
    with pytest.raises(LabError, match="can't be run"):
        machine_of(engine).run(["nonesuch"])


def test_status_125_of_a_command_is_its_own(engine: Engine) -> None:
    engine.end_command(125, stderr=b"git bisect: skip\n")
    assert machine_of(engine).run(["bisect"]).returncode == 125


def test_a_machine_of_the_lab_outlives_its_users(engine: Engine) -> None:
    with machine_of(engine) as machine:
        assert machine.facts() == {"nodes": [0]}
        assert machine.accelerator == "tcg"
    assert engine.status == "running"
    assert not engine.removed


def test_a_machine_of_ones_own_is_removed(engine: Engine) -> None:
    with machine_of(engine, owned=True):
        pass
    assert engine.removed


def test_a_power_cut_is_left_to_whoever_serves_the_guest(engine: Engine) -> None:
    """Its media go with the container, which must therefore live on."""
    machine = machine_of(engine)
    machine.power_cut()
    assert (engine.switches, engine.status) == (["cut"], "running")
    with pytest.raises(MachineDiedError, match="has had its power cut"):
        machine.run(["true"])


def test_it_boots_again_under_the_same_lease(engine: Engine, tmp_path: Path) -> None:
    lease = Lease(tmp_path / "dram.lock")
    machine = ContainerMachine(
        engine.client, load_topology("dram"), engine.container, owned=False, lease=lease
    )
    machine.power_cut()
    machine.power_on()
    assert engine.switches == ["cut", "on"]
    engine.end_command(0, b"up")
    assert machine.run(["echo", "up"]).stdout == "up"
    with pytest.raises(LabError, match="is used by process"):
        Lease(tmp_path / "dram.lock", limit_s=0)
    machine.stop()
    assert engine.restarts == 0


def test_a_machine_of_the_lab_that_is_given_back_without_power_starts_anew(engine: Engine) -> None:
    machine = machine_of(engine)
    machine.power_cut()
    machine.stop()
    machine.stop()
    assert engine.restarts == 1


def test_a_machine_that_somebody_left_without_power_is_known(engine: Engine) -> None:
    assert not has_its_power_cut(engine.container)
    machine_of(engine).power_cut()
    assert has_its_power_cut(engine.container)


def test_a_machine_that_does_not_boot_again_is_down(engine: Engine) -> None:
    machine = machine_of(engine)
    machine.power_cut()
    engine.power_status = 2
    with pytest.raises(LabError, match="no such region"):
        machine.power_on()
    with pytest.raises(MachineDiedError, match=r"did not come up.*no such region"):
        machine.run(["true"])


def test_only_a_machine_without_power_can_be_booted_again(engine: Engine) -> None:
    machine = machine_of(engine)
    with pytest.raises(LabError, match="has power; cut it first"):
        machine.power_on()
    machine.stop()
    with pytest.raises(MachineDiedError, match="is stopped"):
        machine.power_on()


def test_a_line_is_told_as_it_comes_and_may_cut_the_power(engine: Engine) -> None:
    machine = machine_of(engine)
    engine.write(STDOUT, b"begun\nsav")
    engine.write(STDERR, b"a warning\n")
    engine.write(STDOUT, b"ed\nno line")
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line == "saved":
            machine.power_cut()
            engine.end_command(125, stderr=b"pmemlab: the machine is gone")

    with pytest.raises(MachineDiedError, match="has had its power cut"):
        machine.run(["train"], on_line=on_line)
    assert lines == ["begun", "a warning", "saved"]


def test_stopping_ends_what_still_runs(engine: Engine) -> None:
    machine = machine_of(engine)
    threading.Timer(0.1, machine.stop).start()
    with pytest.raises(MachineDiedError, match="is stopped"):
        machine.run(["sleep", "60"])
    assert engine.has_hung_up()


def test_an_unproved_machine_is_not_handed_out(engine: Engine) -> None:
    engine.health = "starting"
    assert not is_proved(engine.container)


def test_a_failed_proof_is_a_lab_error_with_the_end_of_the_log(engine: Engine) -> None:
    engine.status = "exited"
    with pytest.raises(MachineDiedError, match=r"(?s)has ended.*the last \d+ lines"):
        wait_until_proved(engine.container)


def test_a_machine_that_takes_too_long_is_a_lab_error(engine: Engine) -> None:
    engine.health = "unhealthy"
    with pytest.raises(MachineDiedError, match="not proved in time"):
        wait_until_proved(engine.container)


def test_a_machine_that_was_proved_and_paused_is_not_called_unproved(engine: Engine) -> None:
    engine.health, engine.has_proof = "unhealthy", True
    with pytest.raises(MachineDiedError, match="was proved, and doesn't answer now; if it was pau"):
        wait_until_proved(engine.container)


def test_the_running_lab_s_machine_of_a_user_s_topology_is_that_of_the_very_file(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = replace(load_topology("dram"), name="mine")
    engine.container.labels[labels.TOPOLOGY] = label_of(mine)
    found = {"mine": engine.container, "dram": engine.container}
    monkeypatch.setattr(container_machine, "connect", lambda: engine.client)
    monkeypatch.setattr(container_machine, "find_machines", lambda *_: found)
    clone = Clone(Path("/clone"))
    assert runs_in_the_lab(mine, clone)
    assert not runs_in_the_lab(replace(mine, cpus=3), clone)
    assert not runs_in_the_lab(load_topology("dram"), clone)
    engine.status = "exited"
    assert not runs_in_the_lab(mine, clone)


def test_a_command_says_that_its_guest_is_not_the_lab_s_machine_which_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = replace(load_topology("dram"), name="mine")
    engine.container.labels[labels.TOPOLOGY] = label_of(mine)
    monkeypatch.setattr(container_machine, "connect", lambda: engine.client)
    monkeypatch.setattr(container_machine, "find_machines", lambda *_: {"mine": engine.container})
    monkeypatch.setattr(reach, "load_topology", lambda _: mine)
    monkeypatch.setattr(reach, "_fresh_guest", lambda *_: contextlib.nullcontext("a guest"))
    engine.status = "exited"
    with reach.running_or_fresh("mine") as guest:
        assert str(guest) == "a guest"
    told = capfd.readouterr().err
    assert "mine: the lab's container lab_dram_1 (exited) doesn't run" in told
    engine.container.labels[labels.TOPOLOGY] = "another"
    with reach.running_or_fresh("mine"):
        assert capfd.readouterr().err == "", "it was never this topology's"


def test_a_machine_of_the_lab_that_another_file_made_is_not_attached_to(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = replace(load_topology("dram"), name="mine")
    engine.container.labels[labels.TOPOLOGY] = label_of(replace(mine, cpus=3))
    own = Engine()
    asked: list[Topology] = []

    def start(_client: object, _clone: object, topology: Topology, *_: object) -> Container:
        asked.append(topology)
        return own.container

    monkeypatch.setattr(container_machine, "connect", lambda: engine.client)
    monkeypatch.setattr(container_machine, "sweep_abandoned", lambda *_: None)
    monkeypatch.setattr(container_machine, "require_image", lambda *_: "image")
    monkeypatch.setattr(container_machine, "kvm_works", lambda *_: False)
    monkeypatch.setattr(container_machine, "find_machines", lambda *_: {"mine": engine.container})
    monkeypatch.setattr(container_machine, "start_throwaway", start)
    booting: list[Booting] = []
    open_container_machine(mine, on_boot=booting.append).stop()
    assert asked == [mine]
    assert [boot.accelerator for boot in booting] == ["tcg"]
    assert own.removed
    assert not engine.removed
    own.removed, own.exists, own.health = False, True, "starting"
    with pytest.raises(MachineDiedError, match="has ended"):
        open_container_machine(mine, on_boot=lambda booting: booting.stop())
    assert own.removed


def test_a_machine_of_the_lab_that_is_another_by_now_is_not_handed_out(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have been up for hours, and somebody in it meanwhile."""
    dram = load_topology("dram")
    engine.container.labels[labels.TOPOLOGY] = label_of(dram)
    monkeypatch.setattr(container_machine, "connect", lambda: engine.client)
    monkeypatch.setattr(container_machine, "find_clone", lambda: Clone(tmp_path))
    monkeypatch.setattr(container_machine, "sweep_abandoned", lambda *_: None)
    monkeypatch.setattr(container_machine, "require_image", lambda *_: "image")
    monkeypatch.setattr(container_machine, "is_of_image", lambda *_: True)
    monkeypatch.setattr(container_machine, "find_machines", lambda *_: {"dram": engine.container})
    engine.end_command(0, json.dumps(recorded_facts("dram") | {"nodes": [0, 1]}).encode())
    with pytest.raises(ProofError, match=r"nodes: expected \[0\], found \[0, 1\]"):
        open_container_machine(dram)
    Lease.of_lab_machine(Clone(tmp_path), "dram").end()  # others may have it


@pytest.mark.parametrize(
    ("owner", "swept"),
    [(None, False), ("of this process", False), ("0:1", True)],
    ids=["the lab's", "of a living process", "of a dead process"],
)
def test_what_a_dead_process_left_is_swept(engine: Engine, owner: str | None, swept: bool) -> None:
    if owner is not None:
        owner = owner_label() if owner == "of this process" else owner
        engine.container.labels[labels.OWNER] = owner
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: [engine.container]))
    sweep_abandoned(cast(docker.DockerClient, client), Clone(Path("/clone")))
    assert engine.removed == swept
