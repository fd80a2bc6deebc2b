"""A server as Ray hands it out, to whoever starts or asks it."""

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

# Of calls that an actor answers at once. Look-ups and applies aren't among them.
_CALLS_AT_ONCE = 16
_A_LITTLE = 0.0001  # as finely as Ray counts
_PULSE_GROUP = "pulse"  # of the call that tells that an actor is alive, and waits behind no other


class ServerHandle:
    """handle: Ray's. node: the address that its node goes by."""

    def __init__(self, handle: Any, node: str, process_id: int) -> None:
        self._handle = handle
        self.node = node
        self.process_id = process_id

    def check_alive(self, silence_s: float) -> None:
        """ShardLostError where it gives no sign of life for so long."""
        pulse = self._handle.node.options(concurrency_group=_PULSE_GROUP)
        wait_for(pulse.remote(), lambda: raise_silent(silence_s), silence_s)

    def serve(self, rules: PushRules, silence_s: float) -> ServerAddress:
        """Where it serves rows, from now on."""
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
        """What the method of a shard answers; ShardLostError where it, or Ray, is gone.

        check_alive: called now and then; raises where it isn't.
        """
        check_connected()
        reference = self._handle.call.remote(table, method, arguments, options)
        answer: Answer = wait_for(reference, check_alive)
        return answer

    def open(self, *arguments: Any, silence_s: float) -> Answer:
        """As `ServerActor.open`, which may take long; ShardLostError where it is silent."""
        check_connected()
        answer: Answer = wait_for(
            self._handle.open.remote(*arguments), lambda: self.check_alive(silence_s)
        )
        return answer

    def note_returned(self, worker: int) -> None:
        """As `ServerActor.note_returned`; waits for nothing."""
        self._handle.note_returned.remote(worker)

    def end(self) -> None:
        if library().is_initialized():
            with contextlib.suppress(Exception):  # it may be gone already
                library().kill(self._handle)


def start_actors(ray: Any, nodes: Sequence[str | None], has_gpu: bool) -> list[Any]:
    """Ray's handles of actors, which start at once.

    nodes: of each, Ray's id of its node; None: one on each node where there are enough nodes.
    has_gpu: each uses one, of which Ray hides all others from its process. Many may share one, so
        they ask for a little.
    """
    # Whoever asks how a server is doing doesn't wait behind its calls.
    kind = ray.remote(concurrency_groups={STATUS_GROUP: 1, _PULSE_GROUP: 1})(ServerActor)
    at = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return [
        kind.options(
            name=f"{SERVER_NAME}{uuid.uuid4().hex}",
            namespace=NAMESPACE,
            num_cpus=0,  # several may share a core, and would otherwise never start on few
            num_gpus=_A_LITTLE if has_gpu else 0,
            scheduling_strategy="SPREAD" if node is None else at(node, soft=False),
            max_concurrency=_CALLS_AT_ONCE,
            # One that is restarted has lost its rows, and must never look alive; and what is asked
            # twice may be done twice.
            max_restarts=0,
            max_task_retries=0,
        ).remote()
        for node in nodes
    ]
