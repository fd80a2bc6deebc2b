"""Arguments and locks that saves and restores of every kind have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from embstore.checkpoint.restore_plan import SAVE_FILTERED_FEATURES
from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.table.variable_arguments import check_variable_list
from embstore.variable import EmbeddingVariable

__all__ = [
    "PathLike",
    "check_variables",
    "checkpoint_locks",
    "checkpoint_step",
    "directory_path",
    "eviction_limits",
    "saves_waiting_keys",
]

PathLike: TypeAlias = "str | os.PathLike[str]"


def check_variables(variables: Sequence[EmbeddingVariable]) -> list[EmbeddingVariable]:
    chosen = check_variable_list(variables)
    if not chosen:
        raise InvalidArgumentError("variables must have at least one variable")
    for variable in chosen:
        variable.internals.refuse_if_forked()
    names = [variable.name for variable in chosen]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"variables: two of them are named {name}")
    return chosen


def directory_path(path: PathLike, argument: str = "path") -> Path:
    """Returns `path`, the value of an argument of the name `argument`, as an absolute path."""
    found = checks.absolute(argument, checks.directory(argument, path))
    checks.directory(argument, found)  # the working directory may not be UTF-8
    return found


def saves_waiting_keys() -> bool:
    value = os.environ.get(SAVE_FILTERED_FEATURES, "").lower()
    if value in ("", "1", "true"):
        return True
    if value in ("0", "false"):
        return False
    raise InvalidArgumentError(
        f"{SAVE_FILTERED_FEATURES} must be 1 or True, or 0 or False, got {value}"
    )


@contextlib.contextmanager
def checkpoint_locks(variables: Sequence[EmbeddingVariable]) -> Iterator[None]:
    """A scope in which no other save or restore of the variables runs."""
    with contextlib.ExitStack() as stack:
        for variable in sorted(variables, key=id):  # one order for all threads: no deadlock
            stack.enter_context(variable.internals.checkpointing)
        yield


def eviction_limits(
    variable: EmbeddingVariable, global_step: int | None
) -> tuple[int | None, float | None]:
    """Returns the limits below which a checkpoint evicts rows, as
    `EmbeddingVariableOption.eviction_limits` does. None: the step is the variable's count of
    applies.
    """
    step = variable.internals.apply_count() if global_step is None else global_step
    return variable.ev_option.eviction_limits(step)


def checkpoint_step(variables: Sequence[EmbeddingVariable], global_step: int | None) -> int:
    """Returns the step of a checkpoint: global_step, or the largest count of applies if None."""
    if global_step is not None:
        return global_step
    return max(variable.internals.apply_count() for variable in variables)
