"""The `process` machine: this computer as it is, with plain memory in the place of PMem.

It needs no privileges and nothing installed, and it proves little: what a topology demands and
this computer isn't is listed in its facts as "unproved", and what the machine took in the place of
the topology's media as "replaced". After a power cut, "unproved" also says that nothing was lost:
this computer's kernel lives on, with all that programs wrote and didn't flush.

The `host` machine runs commands in the same way, on the topology's own media: see `host`.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pmemlab.errors import (
    CommandTimeoutError,
    LabError,
    MissingFactError,
    MissingRequirementError,
)
from pmemlab.machines.command import checked_argv, checked_environment
from pmemlab.machines.facts import read_facts
from pmemlab.machines.leftovers import Mark
from pmemlab.machines.lines import Lines, OnLine
from pmemlab.machines.protocol import Accelerator, Kind, Result
from pmemlab.machines.room import missing_space
from pmemlab.machines.state_folder import StateFolder
from pmemlab.machines.uptime import POWER_CUT, STOPPED, Uptime
from pmemlab.proof import find_fact, mismatches
from pmemlab.topology import MISLEADING, Topology

__all__ = ["LOST_BY_POWER_CUT", "ProcessMachine", "open_process_machine", "requirements"]

LOST_BY_POWER_CUT = "what was not flushed is lost by a power cut"
"""Among what is "unproved" once the power was cut."""

_SHARED_MEMORY = Path("/dev/shm")
_READ_BYTES = 1 << 16
# A socket's path may have 107 bytes; the longest that Python's multiprocessing adds has 32.
_MOST_TMPDIR_BYTES = 75


def requirements(topology: Topology) -> list[MissingRequirementError]:
    """What this computer lacks for taking the place of a machine of this topology."""
    if topology.pmem.path is None:
        return []
    if not _SHARED_MEMORY.is_dir():
        return [MissingRequirementError(str(_SHARED_MEMORY), "mount -t tmpfs tmpfs /dev/shm")]
    remedy = "mount -o remount,size=4G /dev/shm, or use --machine guest"
    size = topology.pmem.size_bytes
    return list(missing_space(_SHARED_MEMORY, size, f"topology {topology.name}", remedy))


def open_process_machine(topology: Topology) -> ProcessMachine:
    """This computer in the place of a machine of this topology.

    Raises `MissingRequirementError` where the topology's programs could not even be tried here
    (no memkind), `LabError` where there is no room for its persistent memory.
    """
    machine = ProcessMachine(topology)
    machine.open()
    return machine


class ProcessMachine:
    """Commands run as children of this process. `open_process_machine` makes one.

    `topology` is the one asked for, with the places of its memory on this computer: a folder in
    /dev/shm for its DAX mount, node 0 for its nodes, and a temporary folder for its disk.
    """

    kind: Kind = "process"
    accelerator: Accelerator = "none"

    def __init__(self, topology: Topology) -> None:
        self.python = sys.executable
        self.topology = topology
        self._folders: list[StateFolder] = []
        self._replaced: list[str] = []
        self._facts: dict[str, object] = {}
        self._temporary: dict[str, str] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._mark = Mark()
        self._uptime = self._new_uptime()
        self._was_cut = False

    def open(self) -> None:
        """Find places for the topology's media, and prove what can be proved. Raises LabError."""
        try:
            self.topology = self._place(self.topology)
            self._temporary = self._new_temporary()
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Read the facts, and hold them against the topology's demands. Raises LabError."""
        facts = read_facts(self)
        if self.topology.pmem.nodes:
            try:
                find_fact(facts, "memkind.page_nodes")
            except MissingFactError as error:
                nodes = ",".join(map(str, self.topology.pmem.nodes))
                raise MissingRequirementError(
                    f"memkind (libmemkind.so.0), with memory of its KMEM DAX kind on node {nodes} "
                    f"({error.why})",
                    "apt-get install libmemkind0"
                    if "libmemkind.so.0" in error.why
                    else "have the topology's `environment` name the nodes that memkind is to use "
                    f'(MEMKIND_DAX_KMEM_NODES: "{nodes}")',
                ) from error
        facts["unproved"] = self._unproved(facts) + [LOST_BY_POWER_CUT] * self._was_cut
        self._facts = facts

    def _place(self, topology: Topology) -> Topology:
        """Return the topology with places on this computer for its media. Raises LabError."""
        pmem, ssd, environment = topology.pmem, topology.ssd, dict(topology.environment)
        if pmem.path is not None:
            pmem = replace(pmem, path=self._folder_in(_with_room(topology)))
            self._replaced.append(
                f"pmem.path {topology.pmem.path} -> {_SHARED_MEMORY}: DRAM in place of PMem"
            )
        if pmem.nodes:
            named = ", ".join(map(str, pmem.nodes))
            self._replaced.append(f"pmem.nodes {named} -> 0: DRAM in place of PMem or CXL memory")
            pmem = replace(pmem, nodes=(0,))
            environment["MEMKIND_DAX_KMEM_NODES"] = "0"
        if ssd is not None:
            parent = Path(tempfile.gettempdir())
            self._replaced.append(f"ssd.path {ssd.path} -> {parent}: whatever disk that is on")
            ssd = replace(ssd, path=self._folder_in(parent))
        return replace(topology, pmem=pmem, ssd=ssd, environment=environment)

    def _unproved(self, facts: dict[str, object]) -> list[str]:
        """Return the facts that the topology demands and that do not hold. Adds what it took in
        the place of the topology's media.
        """
        facts["replaced"] = self._replaced
        return [mismatch.fact for mismatch in mismatches(self.topology, facts)]

    def _folder_in(self, parent: Path) -> str:
        """Return the path of a new folder there, which `stop` removes."""
        self._folders.append(StateFolder.temporary(parent))
        return str(self._folders[-1].path)

    def _new_temporary(self) -> dict[str, str]:
        """Return the environment that has commands put their temporary files where `stop` removes
        them, also those of commands that were killed.
        """
        folder = Path(self._folder_in(Path(tempfile.gettempdir())), "tmp")
        folder.mkdir()
        if len(os.fsencode(folder)) > _MOST_TMPDIR_BYTES:
            return {}
        # Ray's own folder stays: its sockets have longer paths, and the cluster of this computer
        # is found by it.
        ray = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        return {"TMPDIR": str(folder), "RAY_TMPDIR": ray}

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str | os.PathLike[str]] | None = None,
        timeout: float | None = None,
        on_line: OnLine | None = None,
    ) -> Result:
        argv = checked_argv(argv)
        uptime, mark = self._uptime, self._mark  # in this order: see `power_on`
        uptime.check()
        # What this process can import, the command can: PYTHONPATH is for programs, not for us.
        path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        # As in a topology's `environment`: with these, libpmem's answers would prove nothing. What
        # says where libraries lie stays: programs of this computer may need it.
        own = {
            name: value
            for name, value in os.environ.items()
            if name not in MISLEADING or name.startswith("LD_")
        }
        given = {**self.topology.environment, **checked_environment(env or {})}
        temporary = {} if "TMPDIR" in given else self._temporary
        environment = {**own, "PYTHONPATH": path, **temporary, **given, **mark.environment}
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that its children can be killed with it
            )
        except (OSError, ValueError) as error:
            raise LabError(f"{argv[0]}: can't be run: {error}") from error
        self._running.add(process)
        output = _Output(process)
        try:
            uptime.check()  # it may have ended before the process was known
            output.read(timeout, Lines(on_line))
        except TimeoutError:
            _kill(process)
            output.read(None, Lines(None))
            raise CommandTimeoutError(argv, timeout or 0.0, *output.texts()) from None
        except BaseException:
            _kill(process)
            output.read(None, Lines(None))
            raise
        finally:
            self._running.discard(process)
            output.close()
            if uptime.how_it_ended:
                mark.end_processes()
        uptime.check()
        return Result(process.returncode, *output.texts())

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def prove(self) -> None:
        self._uptime.check()
        self.start()

    def power_cut(self) -> None:
        self._was_cut = True
        self._go_down(POWER_CUT)

    def power_on(self) -> None:
        self._uptime.check_ended()
        # `run` reads them the other way round: no command of the new uptime has the old mark.
        self._mark = Mark()
        self._uptime = self._new_uptime()
        try:
            self.start()
        except BaseException as error:
            self._go_down(f"did not come up: {error}")
            raise

    def stop(self) -> None:
        self._go_down(STOPPED)
        for folder in self._folders:
            folder.release()

    def __enter__(self) -> ProcessMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _new_uptime(self) -> Uptime:
        return Uptime(f"machine {self.topology.name}")

    def _go_down(self, how: str) -> None:
        self._uptime.end(how)
        for process in list(self._running):
            _kill(process)
        self._mark.end_processes()


class _Output:
    """What a process writes, read until its end, whoever else holds its pipes then."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._streams = (process.stdout, process.stderr)
        self._written = (bytearray(), bytearray())
        self._end = os.pidfd_open(process.pid)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._end, selectors.EVENT_READ)
        for number, stream in enumerate(self._streams):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, number)

    def read(self, timeout: float | None, lines: Lines) -> None:
        """Raises TimeoutError past the timeout; reading can then go on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        has_ended = False
        while not has_ended:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            for key, _ in self._selector.select(left):
                if key.fd == self._end:
                    has_ended = True
                else:
                    self._pump(key, lines, _READ_BYTES)
        for key in list(self._selector.get_map().values()):
            if key.fd != self._end:
                self._drain(key, lines)
        self._process.wait()

    def _pump(self, key: selectors.SelectorKey, lines: Lines, limit: int) -> int:
        """Reads what a pipe has now, up to a limit. Returns the number of bytes."""
        try:
            data = os.read(key.fd, min(limit, _READ_BYTES))
        except BlockingIOError:
            return 0
        if not data:
            self._selector.unregister(key.fileobj)
        self._written[key.data].extend(data)
        lines.feed(key.data, data)
        return len(data)

    def _drain(self, key: selectors.SelectorKey, lines: Lines) -> None:
        """Reads what the ended process left in a pipe, and no more than the pipe holds at a time: a
        child that it left behind may go on writing for ever.
        """
        left = fcntl.fcntl(key.fd, fcntl.F_GETPIPE_SZ)
        while left > 0 and (count := self._pump(key, lines, left)):
            left -= count

    def texts(self) -> tuple[str, str]:
        """Returns stdout and stderr."""
        stdout, stderr = (bytes(part).decode(errors="surrogateescape") for part in self._written)
        return stdout, stderr

    def close(self) -> None:
        self._selector.close()
        os.close(self._end)
        for stream in self._streams:
            stream.close()


def _with_room(topology: Topology) -> Path:
    """Return a folder of plain shared memory with room for the topology's persistent memory."""
    for missing in requirements(topology):
        raise missing
    return _SHARED_MEMORY


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
