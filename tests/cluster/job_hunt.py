"""A hunt: kills or stops processes of a training job at random moments until the job is done.

The cluster consists of servers on the loopback address: a head, and nodes with PMem. The hunt
restarts the driver and the servers, as an operator would. Shards and workers restart by themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from processes import command
from servers import Server, end, first_line, free_port, sessions_folder, start

__all__ = ["Hunt", "Kill", "drawn", "hunt"]

_MARK = "EMBSTORE_HUNT"  # a variable in the environment of every process that a hunt starts
_NODES = 2  # beside the head
_RUN_S = 150.0  # the most that a run may take after its last kill
_ENDED_S = 30.0

# The number of kills of each kind among 50.
KINDS = {
    "kill a shard": 11,
    "kill a worker": 11,
    "stop a shard": 6,
    "stop a worker": 6,
    "kill a node": 4,
    "kill all nodes": 2,
    "kill the driver": 6,
    "kill the job's actor": 4,
}
MOMENTS = {  # each with the longest delay after it, in seconds
    "training": 1.0,
    "checkpoint": 0.06,
    "publishing": 0.005,
    "starting": 0.8,
}
STORAGES = ("DRAM", "DRAM_PMEM", "DRAM_SSDHASH", "DRAM_PMEM durable")

# With these, Ray notices a killed node in seconds.
_QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill. delay_s: how long after the moment it happens."""

    kind: str
    moment: str
    delay_s: float


def drawn(count: int, seed: int) -> list[Kill]:
    """Draws kills: their kinds in proportion, as far as `count` allows, in random order."""
    chance = random.Random(seed)
    all_of_them = [kind for kind, share in KINDS.items() for _ in range(share)]
    kinds: list[str] = []
    while len(kinds) < count:
        chance.shuffle(all_of_them)
        kinds += all_of_them
    made = []
    for kind in kinds[:count]:
        moment, longest_s = chance.choice(list(MOMENTS.items()))
        made.append(Kill(kind, moment, chance.uniform(0, longest_s)))
    return made


class Hunt:
    """A hunt on one cluster. It runs the job again and again until all kills are done."""

    def __init__(self, folder: Path, ray_folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._ray_folder = ray_folder
        self._tell = tell
        self._mark = uuid.uuid4().hex
        self._head: Server | None = None
        self._nodes: dict[int, Server] = {}
        self._command: list[str] = []  # of the present run
        self._driver: subprocess.Popen[str] | None = None
        self.done: Counter[str] = Counter()

    # --- The cluster

    def begin(self) -> None:
        self._head = self._serve("--bind_ip", f"127.0.0.1:{free_port()}")
        for node in range(_NODES):
            self._join(node)

    def close(self) -> None:
        """Ends every process of the hunt, also after a failure."""
        for server in (*self._nodes.values(), self._head):
            if server is not None:
                end(server.process)
        if self._driver is not None and self._driver.poll() is None:
            self._driver.kill()
        for process in self._hunts_processes():
            _signal(process, signal.SIGKILL)

    def assert_ends_whole(self) -> None:
        """Ends the servers by SIGTERM, and asserts that no process of the hunt is left."""
        for server in (*self._nodes.values(), self._head):
            assert server is not None
            end(server.process)
        _wait_until(
            lambda: not self._hunts_processes(),
            _ENDED_S,
            lambda: f"left: {_described(self._hunts_processes())}",
        )

    def _join(self, node: int) -> None:
        assert self._head is not None
        pmem = self._folder / f"pmem{node}"
        pmem.mkdir(exist_ok=True)
        self._nodes[node] = self._serve(
            "--master_endpoint", self._head.address, "--pmem", str(pmem)
        )

    def _serve(self, *flags: str) -> Server:
        process = start(
            [sys.executable, "-m", "embstore.server", *flags],
            self._ray_folder,
            **{_MARK: self._mark, **_QUICK},
        )
        address = first_line(process).rpartition("RAY_ADDRESS=")[2].strip()
        return Server(process, address, None)

    # --- A run of the job

    def run(self, kills: Sequence[Kill], program: Path, *arguments: str) -> tuple[Path, int]:
        """Runs a program that begins a job; its arguments are a folder and `arguments`. Returns the
        folder, and the number of kills that were done before the job ended.
        """
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir()
        (folder / "ssd").mkdir()
        # A job doesn't start on pools that have checkpoints of another job.
        for part in self._folder.glob("pmem*/*.part*"):
            part.unlink()
        self._command = [sys.executable, str(program), str(folder), *arguments]
        self._begin_driver(folder)
        killed = 0
        for kill in kills:
            if not self._wait_for(kill, folder) or not self._do_kill(kill, folder):
                break
            killed += 1
            self.done[kill.kind] += 1
        began = time.monotonic()
        while self._is_running(folder):
            assert time.monotonic() - began < _RUN_S, (
                f"never ends: {_described(self._hunts_processes())}"
            )
            time.sleep(0.05)
        _wait_until(
            lambda: not self._alive(folder),
            _ENDED_S,
            lambda: f"left by the job: {_described(self._alive(folder).values())}",
        )
        return folder, killed

    def _begin_driver(self, folder: Path) -> None:
        assert self._head is not None
        with (folder / "told").open("a") as told:
            self._driver = subprocess.Popen(
                self._command,
                stdout=told,
                stderr=told,
                text=True,
                env={
                    **os.environ,
                    "RAY_ADDRESS": self._head.address,
                    "RAY_TMPDIR": str(self._ray_folder),
                    _MARK: self._mark,
                },
            )

    def _is_running(self, folder: Path) -> bool:
        """Returns False once the job has its result. Fails if the driver itself has failed."""
        assert self._driver is not None
        if self._driver.poll() is None:
            return True
        told = (folder / "told").read_text()
        assert self._driver.returncode == 0, told[-6000:]
        return False

    def _wait_for(self, kill: Kill, folder: Path) -> bool:
        """Waits for the moment of the kill. Returns False if the job ends first."""
        checkpoints = folder / "checkpoints"
        began = time.time()

        def is_new(paths: Iterable[Path]) -> bool:
            return any(_made(path) > began for path in paths)

        def has_come() -> bool:
            if kill.moment == "checkpoint":
                return is_new(checkpoints.glob(".unfinished-*/*/tables"))
            if kill.moment == "publishing":
                return is_new(checkpoints.glob(".unfinished-*/*/checkpoint.json"))
            if kill.moment == "starting":
                return is_new(folder.glob("worker-*"))
            return bool(self._alive(folder))

        deadline = time.monotonic() + 10
        while not has_come() and time.monotonic() < deadline:  # after that, any moment will do
            if not self._is_running(folder):
                return False
            time.sleep(0.002)
        time.sleep(kill.delay_s)
        return self._is_running(folder)

    def _do_kill(self, kill: Kill, folder: Path) -> bool:
        """Does the kill. Returns False if the job ended before there was a process to kill."""
        if any((folder / "checkpoints").glob(".unfinished-*/*")):
            self.done["of them in a checkpoint"] += 1
        if kill.kind == "kill the driver":
            assert self._driver is not None
            self._driver.kill()
            self._driver.wait()
            self._tell(f"{kill}: {self._driver.pid}")
            self._begin_driver(folder)
            return True
        chance = random.Random(repr(kill))
        if kill.kind == "kill a node":
            self._kill_nodes([chance.choice(sorted(self._nodes))], kill)
            return True
        if kill.kind == "kill all nodes":
            self._kill_nodes(sorted(self._nodes), kill)
            return True
        wanted = kill.kind.rpartition(" ")[2]
        while not (alive := self._candidates(wanted, folder)):
            if not self._is_running(folder):
                return False
            time.sleep(0.01)
        process = chance.choice(alive)
        self._tell(f"{kill}: {process}")
        _signal(process, signal.SIGSTOP if kill.kind.startswith("stop") else signal.SIGKILL)
        return True

    def _kill_nodes(self, nodes: Sequence[int], kill: Kill) -> None:
        """Kills all processes of the nodes, and starts the nodes again."""
        self._tell(f"{kill}: {nodes}")
        for node in nodes:
            server = self._nodes[node]
            for process in (server.process.pid, *server.everything()):
                _signal(process, signal.SIGKILL)
            server.process.communicate()
        for node in nodes:
            self._join(node)

    def _candidates(self, wanted: str, folder: Path) -> list[int]:
        return [
            process
            for name, process in sorted(self._alive(folder).items())
            if name.startswith(wanted) and _state(process) not in "TZ"
        ]

    def _alive(self, folder: Path) -> dict[str, int]:
        """Returns the processes that have taken part and still run, by name."""
        named = {path.name: int(path.name.partition("-")[2]) for path in folder.glob("*-*")}
        return {name: process for name, process in named.items() if self._is_of_hunt(process)}

    def _hunts_processes(self) -> set[int]:
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return {process for process in numbers if self._is_of_hunt(process)}

    def _is_of_hunt(self, process: int) -> bool:
        """Returns whether the hunt has started the process, and it still runs."""
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{process}/environ").read_bytes()
            return f"{_MARK}={self._mark}".encode() in environment
        return False


@contextlib.contextmanager
def hunt(folder: Path, tell: Callable[[str], None]) -> Iterator[Hunt]:
    with sessions_folder() as ray_folder:
        begun = Hunt(folder, ray_folder, tell)
        try:
            begun.begin()
            yield begun
            begun.assert_ends_whole()
        finally:
            begun.close()


def _made(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _state(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def _described(processes: object) -> list[str]:
    return [
        f"{process} {_state(process)} {command(process)[:100]}"
        for process in sorted(processes)  # type: ignore[call-overload]
    ]


def _wait_until(is_so: Callable[[], bool], within_s: float, describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)
