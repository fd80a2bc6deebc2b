"""Calls of actors, and the errors that they end with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray.cluster import library
from embstore.errors import EmbStoreError, ShardLostError

__all__ = ["Answer", "check_connected", "first_line", "raise_silent", "wait_for"]

_CHECK_INTERVAL_S = 5.0


@dataclass(frozen=True)
class Answer:
    """The result of a method, or the embstore error that it raised."""

    value: Any = None
    error: EmbStoreError | None = None


def check_connected() -> None:
    """Raises ShardLostError if Ray was shut down in this process: a call would start Ray again."""
    if not library().is_initialized():
        raise ShardLostError("Ray was shut down in this process, which ended what it held there")


def wait_for(
    reference: Any,
    check_alive: Callable[[], None] = lambda: None,
    checked_every_s: float = _CHECK_INTERVAL_S,
) -> Any:
    """Returns the answer of an actor's call. Raises ShardLostError if the actor is dead.

    check_alive: called every checked_every_s while waiting; raises if the actor is gone.
    """
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


def first_line(error: Exception) -> str:
    """Returns the first line of a Ray error, whose text is long, without its full stop."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__).rstrip(".")
