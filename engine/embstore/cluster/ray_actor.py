"""An actor of Ray's that holds a shard, and what its calls can meet."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from embstore.cluster.ray_cluster import library
from embstore.cluster.shard_actor import Answer, ShardActor
from embstore.cluster.shard_status import NAMESPACE, STATUS_GROUP, ShardName
from embstore.errors import ShardLostError

__all__ = ["GPU_RESOURCE", "RayActor", "first_line", "raise_silent", "start_actors", "wait_for"]

GPU_RESOURCE = "GPU"  # Ray's name

# Of calls that an actor answers at once. Look-ups and applies aren't among them.
_CALLS_AT_ONCE = 16
_PULSE_GROUP = "pulse"  # of the call that tells that an actor is alive, and waits behind no other
_CHECKED_EVERY_S = 5.0


class RayActor:
    """handle: Ray's. node: the address that its node goes by."""

    def __init__(self, handle: Any, node: str, process_id: int) -> None:
        self._handle = handle
        self.node = node
        self.process_id = process_id

    def check_alive(self, silence_s: float) -> None:
        """ShardLostError where it gives no sign of life for so long."""
        pulse = self._handle.node.options(concurrency_group=_PULSE_GROUP)
        wait_for(pulse.remote(), lambda: raise_silent(silence_s), silence_s)

    def call(
        self,
        method: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        check_alive: Callable[[], None],
    ) -> Answer:
        """What the shard's method answers; ShardLostError where the actor, or Ray, is gone.

        check_alive: called now and then; raises where the actor isn't.
        """
        _check_connected()
        answer: Answer = wait_for(self._handle.call.remote(method, arguments, options), check_alive)
        return answer

    def open(self, *arguments: Any, silence_s: float) -> Answer:
        """As `ShardActor.open`, which may take long; ShardLostError where it is silent."""
        answer: Answer = wait_for(
            self._handle.open.remote(*arguments), lambda: self.check_alive(silence_s)
        )
        return answer

    def end(self) -> None:
        if library().is_initialized():
            with contextlib.suppress(Exception):  # it may be gone already
                library().kill(self._handle)


def _check_connected() -> None:
    """Ray starts anew by itself where it is asked for something after it was shut down."""
    if not library().is_initialized():
        raise ShardLostError("Ray was shut down in this process, which ended what it held there")


def wait_for(
    reference: Any,
    check_alive: Callable[[], None] = lambda: None,
    checked_every_s: float = _CHECKED_EVERY_S,
) -> Any:
    """What an actor's call answers. check_alive: called now and then; raises where it isn't."""
    ray = library()
    try:
        while True:
            try:
                return ray.get(reference, timeout=checked_every_s)
            except ray.exceptions.GetTimeoutError:
                check_alive()
    except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:
        raise ShardLostError(f"its actor died: {first_line(error)}") from error
    except ray.exceptions.RayTaskError:
        raise  # a defect of ours, with its traceback
    except ray.exceptions.RayError as error:
        raise ShardLostError(first_line(error)) from error


def raise_silent(silence_s: float) -> None:
    raise ShardLostError(f"its actor has given no sign of life for {silence_s:g} s")


def start_actors(ray: Any, variable: str, resources: Sequence[dict[str, float]]) -> list[Any]:
    """Ray's handles of actors, which start at once, one on a node where there are enough nodes.

    resources: what each needs of its node, by Ray's names.
    """
    count = len(resources)
    others = [{name: of[name] for name in of if name != GPU_RESOURCE} for of in resources]
    # Whoever asks how a shard is doing doesn't wait behind its calls.
    kind = ray.remote(concurrency_groups={STATUS_GROUP: 1, _PULSE_GROUP: 1})(ShardActor)
    unique = uuid.uuid4().hex[:12]  # many may have a variable of that name
    return [
        kind.options(
            name=ShardName(variable, i, count, unique).text,
            namespace=NAMESPACE,
            num_cpus=0,  # several may share a core, and would otherwise never start on few
            num_gpus=resources[i].get(GPU_RESOURCE, 0.0),  # Ray takes it by this argument alone
            resources=others[i],
            scheduling_strategy="SPREAD",
            max_concurrency=_CALLS_AT_ONCE,
            # One that is restarted has lost its rows, and must never look alive; and what is asked
            # twice may be done twice.
            max_restarts=0,
            max_task_retries=0,
        ).remote()
        for i in range(count)
    ]


def first_line(error: Exception) -> str:
    """Of what Ray tells, which is long."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
