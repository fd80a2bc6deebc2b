"""Calls of actors, and what they can meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray.cluster import library
from embstore.errors import EmbStoreError, ShardLostError

__all__ = ["Answer", "check_connected", "first_line", "raise_silent", "wait_for"]

_CHECKED_EVERY_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What a method returned, or the embstore error that it raised."""

    value: Any = None
    error: EmbStoreError | None = None


def check_connected() -> None:
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


def first_line(error: Exception) -> str:
    """Of what Ray tells, which is long; without its full stop."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__).rstrip(".")
