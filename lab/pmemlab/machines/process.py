"""The `process` machine: this computer as it is, with plain memory in place of PMem.

It needs no privileges and no installation, and it proves little. Its facts list the topology's
demands that this computer does not meet as "unproved", and the replacements of the topology's media
as "replaced". After a power cut, "unproved" also says that nothing was lost: this computer's kernel
lives on, with everything that programs wrote and didn't flush.

Commands are run by the guests' agent, as a process of this computer. The `host` machine runs them
in the same way, on the topology's own media: see `host`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pmemlab.errors import MachineDiedError, MissingFactError, MissingRequirementError
from pmemlab.machines.boot import POWER_CUT, STOPPED, Boot, Uptime
from pmemlab.machines.capacity import missing_space
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.link import Link
from pmemlab.machines.leftovers import ProcessMark
from pmemlab.machines.linked import LinkedMachine
from pmemlab.machines.protocol import Accelerator, Kind
from pmemlab.machines.state_folder import StateFolder
from pmemlab.proof import find_fact, mismatches, read_facts
from pmemlab.topology import MISLEADING, Topology

__all__ = ["LOST_BY_POWER_CUT", "ProcessMachine", "open_process_machine", "requirements"]

LOST_BY_POWER_CUT = "what was not flushed is lost by a power cut"
"""An item of "unproved" once the power was cut."""

_SHARED_MEMORY = Path("/dev/shm")
_END_S = 10.0
# A socket's path may have 107 bytes; the longest that Python's multiprocessing adds has 32.
_MAX_TMPDIR_BYTES = 75


def requirements(topology: Topology) -> list[MissingRequirementError]:
    """Returns what this computer lacks for standing in for a machine of this topology."""
    if topology.pmem.path is None:
        return []
    if not _SHARED_MEMORY.is_dir():
        return [MissingRequirementError(str(_SHARED_MEMORY), "mount -t tmpfs tmpfs /dev/shm")]
    remedy = "mount -o remount,size=4G /dev/shm, or use --machine guest"
    size = topology.pmem.size_bytes
    return list(missing_space(_SHARED_MEMORY, size, f"topology {topology.name}", remedy))


def open_process_machine(topology: Topology) -> ProcessMachine:
    """Returns this computer, standing in for a machine of this topology.

    Raises `MissingRequirementError` if the topology's programs could not even be tried here (no
    memkind), `LabError` if there is no room for its persistent memory.
    """
    machine = ProcessMachine(topology)
    machine.open()
    return machine


class _Agent:
    """An agent on this computer. Its commands run in this process's working folder."""

    def __init__(self, name: str, port: socket.socket) -> None:
        self._name = name
        self.mark = ProcessMark()
        folder = f"/proc/{os.getpid()}/cwd"
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", agent.__file__, str(port.fileno()), folder],
            env={**os.environ, **self.mark.environment},
            pass_fds=[port.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )

    def kill(self) -> None:
        self._process.terminate()  # it ends its commands, whatever their environment
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.mark.end_processes()
        self._process.kill()
        self._process.wait()

    def death_error(self, observation: str) -> MachineDiedError:
        return MachineDiedError(f"machine {self._name} {observation}")


class ProcessMachine(LinkedMachine):
    """Runs commands on this computer. `open_process_machine` makes one.

    `topology` is the requested one, with the places of its memory on this computer: a folder in
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
        self._was_cut = False
        self._boot = self._new_boot()

    def open(self) -> None:
        """Finds places for the topology's media, and proves what can be proved. Raises LabError."""
        try:
            self.topology = self._place(self.topology)
            self._temporary = self._new_temporary()
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Reads the facts, and compares them with the topology's demands. Raises LabError."""
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
        """Returns the topology with places on this computer for its media. Raises LabError."""
        pmem, ssd, environment = topology.pmem, topology.ssd, dict(topology.environment)
        if pmem.path is not None:
            pmem = replace(pmem, path=self._folder_in(_folder_with_space(topology)))
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
        """Returns the demanded facts that do not hold. Adds the replacements of the topology's
        media to `facts`.
        """
        facts["replaced"] = self._replaced
        return [mismatch.fact for mismatch in mismatches(self.topology, facts)]

    def _folder_in(self, parent: Path) -> str:
        """Returns the path of a new folder in `parent`, which `stop` removes."""
        self._folders.append(StateFolder.temporary(parent))
        return str(self._folders[-1].path)

    def _new_temporary(self) -> dict[str, str]:
        """Returns the environment that puts temporary files where `stop` removes them, also the
        files of killed commands.
        """
        folder = Path(self._folder_in(Path(tempfile.gettempdir())), "tmp")
        folder.mkdir()
        if len(os.fsencode(folder)) > _MAX_TMPDIR_BYTES:
            return {}
        # Ray keeps its own folder: its sockets have longer paths, and this computer's cluster is
        # found by the folder.
        ray = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        return {"TMPDIR": str(folder), "RAY_TMPDIR": ray}

    def _uptime(self) -> Uptime:
        return self._boot.uptime

    def _link_for(self, _: Sequence[str]) -> Link:
        return self._boot.link

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        # Lets the command import what this process can: PYTHONPATH is for programs, not for us.
        path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        # Drops the variables that a topology's `environment` may not have, since libpmem's answers
        # would prove nothing. Variables with library paths stay: programs may need them.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in MISLEADING or name.startswith("LD_")
        }
        from_caller = {**self.topology.environment, **env}
        temporary = {} if "TMPDIR" in from_caller else self._temporary
        mark = self._boot.emulator.mark.environment
        return {**inherited, "PYTHONPATH": path, **temporary, **from_caller, **mark}

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def prove(self) -> None:
        self._boot.uptime.check()
        self.start()

    def power_cut(self) -> None:
        self._was_cut = True
        self._boot.end(POWER_CUT)

    def power_on(self) -> None:
        self._boot.uptime.check_ended()
        self._boot = self._new_boot()
        try:
            self.start()
        except BaseException as error:
            self._boot.end(f"did not come up: {error}")
            raise

    def stop(self) -> None:
        self._boot.end(STOPPED)
        for folder in self._folders:
            folder.release()

    def _new_boot(self) -> Boot[_Agent]:
        name = self.topology.name
        return Boot(f"machine {name}", lambda port: _Agent(name, port))


def _folder_with_space(topology: Topology) -> Path:
    """Returns a folder of plain shared memory with room for the topology's persistent memory."""
    for missing in requirements(topology):
        raise missing
    return _SHARED_MEMORY
