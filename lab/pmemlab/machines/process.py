"""The `process` machine: this computer as it is, with plain memory in the place of PMem.

It needs no privileges and nothing installed, and it proves little: what a topology demands and
this computer isn't is listed in its facts as "unproved".
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from pmemlab.errors import (
    CommandTimeoutError,
    LabError,
    MachineDiedError,
    MissingFactError,
    MissingRequirementError,
)
from pmemlab.machines.facts import read_facts
from pmemlab.machines.protocol import Accelerator, Result
from pmemlab.machines.room import gibibytes
from pmemlab.machines.state_folder import StateFolder
from pmemlab.proof import find_fact, mismatches
from pmemlab.topology import Topology

__all__ = ["ProcessMachine", "open_process_machine", "requirements"]

_SHARED_MEMORY = Path("/dev/shm")


def requirements(topology: Topology) -> list[MissingRequirementError]:
    """What this computer lacks for taking the place of a machine of this topology."""
    if topology.pmem.path is None:
        return []
    if not _SHARED_MEMORY.is_dir():
        return [MissingRequirementError(str(_SHARED_MEMORY), "mount -t tmpfs tmpfs /dev/shm")]
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if free < topology.pmem.size_bytes:
        return [
            MissingRequirementError(
                f"{gibibytes(topology.pmem.size_bytes)} free in {_SHARED_MEMORY} for "
                f"{topology.name}: {gibibytes(free)} are free",
                "mount -o remount,size=4G /dev/shm",
            )
        ]
    return []


def open_process_machine(topology: Topology) -> ProcessMachine:
    """This computer in the place of a machine of this topology.

    Raises `MissingRequirementError` where the topology's programs could not even be tried here
    (no memkind), `LabError` where there is no room for its persistent memory.
    """
    machine = ProcessMachine(topology)
    try:
        machine.start()
    except BaseException:
        machine.stop()
        raise
    return machine


class ProcessMachine:
    """Commands run as children of this process. `open_process_machine` makes one.

    `topology` is the one asked for, with the places of its memory on this computer: a folder in
    /dev/shm for its DAX mount, node 0 for its nodes, and a temporary folder for its disk.
    """

    kind: Literal["process"] = "process"
    accelerator: Accelerator = "none"

    def __init__(self, topology: Topology) -> None:
        self.python = sys.executable
        self._folders: list[StateFolder] = []
        pmem = topology.pmem
        environment = dict(topology.environment)
        if pmem.path is not None:
            self._folders.append(_folder_for(topology))
            pmem = replace(pmem, path=str(self._folders[-1].path))
        if pmem.nodes:
            pmem = replace(pmem, nodes=(0,))
            environment["MEMKIND_DAX_KMEM_NODES"] = "0"
        ssd = topology.ssd
        if ssd is not None:
            self._folders.append(StateFolder.temporary())
            ssd = replace(ssd, path=str(self._folders[-1].path))
        self.topology = replace(topology, pmem=pmem, ssd=ssd, environment=environment)
        self._facts: dict[str, object] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._end = ""  # how it went down, once it has

    def start(self) -> None:
        """Read the facts, and tell which of the topology's demands they do not meet."""
        self._facts = read_facts(self)
        if self.topology.pmem.nodes:
            try:
                find_fact(self._facts, "memkind.page_nodes")
            except MissingFactError as error:
                raise MissingRequirementError(
                    "memkind (libmemkind.so.0), with memory of its KMEM DAX kind on node 0 "
                    f"({error.why})",
                    "apt-get install libmemkind0",
                ) from error
        self._facts["unproved"] = [m.fact for m in mismatches(self.topology, self._facts)]

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Result:
        if self._end:
            raise MachineDiedError(f"machine {self.topology.name} {self._end}")
        # What this process can import, the command can: PYTHONPATH is for programs, not for us.
        path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        environment = {**os.environ, "PYTHONPATH": path, **self.topology.environment, **(env or {})}
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
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
            raise CommandTimeoutError(argv, timeout or 0.0, _text(stdout), _text(stderr)) from None
        except BaseException:
            _kill(process)
            process.communicate()
            raise
        finally:
            self._running.discard(process)
        if self._end:
            raise MachineDiedError(f"machine {self.topology.name} {self._end}")
        return Result(process.returncode, _text(stdout), _text(stderr))

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def prove(self) -> None:
        self.start()

    def power_cut(self) -> None:
        self._go_down("has had its power cut")

    def stop(self) -> None:
        self._go_down("is stopped")
        for folder in self._folders:
            folder.release()

    def __enter__(self) -> ProcessMachine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _go_down(self, how: str) -> None:
        self._end = self._end or how
        for process in list(self._running):
            _kill(process)


def _folder_for(topology: Topology) -> StateFolder:
    """A folder of plain shared memory with room for the topology's persistent memory."""
    free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
    if free < topology.pmem.size_bytes:
        raise LabError(
            f"topology {topology.name}: {_SHARED_MEMORY} has {free >> 20} MiB free, but "
            f"{topology.pmem.size_bytes >> 20} MiB are wanted; give it more, or use --machine guest"
        )
    return StateFolder.temporary(_SHARED_MEMORY)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _text(output: bytes) -> str:
    return output.decode(errors="surrogateescape")
