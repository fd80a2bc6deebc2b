"""A client's handle of a server, by which it starts and calls it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from embstore.cluster.ray.calls import Answer, check_connected, raise_silent, wait_for
from embstore.cluster.ray.cluster import library
from embstore.cluster.rows.connections import ServerAddress
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.server.actor import ServerActor
from embstore.cluster.server.status import NAMESPACE, SERVER_NAME, STATUS_GROUP

__all__ = ["GPU_RESOURCE", "ServerHandle", "start_actors"]

GPU_RESOURCE = "GPU"  # Ray's name

# Number of calls that an actor answers at once. Look-ups and applies aren't among them.
_CALLS_AT_ONCE = 16
_MIN_FRACTION = 0.0001  # the smallest fraction of a resource that Ray counts
_PULSE_GROUP = "pulse"  # for checks that an actor is alive, which wait behind no other call


class ServerHandle:
    """A server as a Ray actor. handle: Ray's. node: the address of its node."""

    def __init__(self, handle: Any, node: str, process_id: int) -> None:
        self._handle = handle
        self.node = node
        self.process_id = process_id

    def check_alive(self, silence_s: float) -> None:
        """Raises ShardLostError if the server gives no sign of life for silence_s."""
        pulse = self._handle.node.options(concurrency_group=_PULSE_GROUP)
        wait_for(pulse.remote(), lambda: raise_silent(silence_s), silence_s)

    def serve(self, rules: PushRules, silence_s: float) -> ServerAddress:
        """Has the server serve rows from now on, and returns its address."""
        address: ServerAddress = wait_for(
            self._handle.serve.remote(self.node, rules), lambda: self.check_alive(silence_s)
        )
        return address

    def call(
        self,
        table: int,
        method: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        check_alive: Callable[[], None],
    ) -> Answer:
        """Calls a method of a shard, and returns its answer. Raises ShardLostError if the server,
        or Ray, is gone.

        check_alive: called from time to time; raises if the server is gone.
        """
        check_connected()
        reference = self._handle.call.remote(table, method, arguments, options)
        answer: Answer = wait_for(reference, check_alive)
        return answer

    def open(self, *arguments: Any, silence_s: float) -> Answer:
        """Calls `ServerActor.open`. Raises ShardLostError if the server gives no sign of life."""
        check_connected()
        answer: Answer = wait_for(
            self._handle.open.remote(*arguments), lambda: self.check_alive(silence_s)
        )
        return answer

    def note_returned(self, worker: int) -> None:
        """Calls `ServerActor.note_returned` without waiting for it."""
        self._handle.note_returned.remote(worker)

    def end(self) -> None:
        if library().is_initialized():
            with contextlib.suppress(Exception):  # the actor may be gone already
                library().kill(self._handle)


def start_actors(ray: Any, nodes: Sequence[str | None], has_gpu: bool) -> list[Any]:
    """Starts server actors, and returns Ray's handles of them.

    nodes: for each actor, Ray's id of its node; None: Ray spreads the actors over the nodes.
    has_gpu: each actor uses a GPU, and Ray hides the other GPUs from its process. Many actors may
        share one, so each asks for a small fraction.
    """
    # Status calls and liveness checks have concurrency groups of their own: other calls don't delay
    # them.
    kind = ray.remote(concurrency_groups={STATUS_GROUP: 1, _PULSE_GROUP: 1})(ServerActor)
    at = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return [
        kind.options(
            name=f"{SERVER_NAME}{uuid.uuid4().hex}",
            namespace=NAMESPACE,
            num_cpus=0,  # several share a core: if they asked for CPUs, some might never start
            num_gpus=_MIN_FRACTION if has_gpu else 0,
            scheduling_strategy="SPREAD" if node is None else at(node, soft=False),
            max_concurrency=_CALLS_AT_ONCE,
            # A restarted server has lost its rows and must not look alive, and a call that is
            # repeated may be done twice.
            max_restarts=0,
            max_task_retries=0,
        ).remote()
        for node in nodes
    ]
