"""Look-ups and updates of several variables in one call."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from embstore import _checks
from embstore._device_batches import OnDevice, is_on_device
from embstore._steps_on_device import ApplyStep, LookUpStep, apply_together, look_up_together
from embstore.errors import EmbStoreError, InvalidArgumentError
from embstore.variable import EmbeddingVariable

__all__ = ["apply_many", "lookup_many"]


def lookup_many(
    variables: Sequence[EmbeddingVariable],
    ids: Sequence[_checks.Ids | OnDevice],
    *,
    train: bool = False,
) -> list[Any]:
    """Returns the rows of each variable's ids, as `variable.lookup(ids, train=train)` does.

    ids: of each variable, in their order. A variable may be there several times.

    Ids on one GPU are looked up as one step on its stream, with as many launches of kernels as one
    variable takes. Variables with ids on the host are looked up one after the other. An error
    names the variable that it is about.
    """
    _check_lengths(variables, ids=ids)
    rows: list[Any] = [None] * len(variables)
    steps: dict[int, LookUpStep] = {}
    for i, (variable, own) in enumerate(zip(variables, ids, strict=True)):
        if is_on_device(own):
            with _named(variable):
                steps[i] = LookUpStep.of(variable, own, None)
    look_up_together(list(steps.values()), train)
    for i, (variable, own) in enumerate(zip(variables, ids, strict=True)):
        if i in steps:
            rows[i] = steps[i].out
        else:
            with _named(variable):
                rows[i] = variable.lookup(own, train=train)
    return rows


def apply_many(
    variables: Sequence[EmbeddingVariable],
    ids: Sequence[_checks.Ids | OnDevice],
    grads: Sequence[_checks.Rows | OnDevice],
    global_step: int | None = None,
) -> None:
    """Trains each variable by its ids and gradients, as `variable.apply_gradients` does.

    ids and grads: of each variable, in their order. No variable may be there twice.

    Batches whose ids and gradients are on one GPU are applied as one step on its stream, with as
    many launches of kernels as one variable takes. Each variable's batch is applied whole or not
    at all. An error of one stops no other: the first one is raised when all have had their turn,
    and names the variable. Arguments that don't fit are found before anything is applied where the
    ids are on a GPU.
    """
    _check_lengths(variables, ids=ids, grads=grads)
    for variable, times in Counter(variables).items():
        variable._check_trainable()
        if times > 1:
            raise InvalidArgumentError(
                f"{variable.name} is there {times} times; join its batches into one, since one "
                "step trains a row once"
            )
    if global_step is not None:
        global_step = _checks.integer("global_step", global_step, at_least=0)
    steps: list[ApplyStep] = []
    others: list[tuple[EmbeddingVariable, Any, Any]] = []
    for variable, own, by in zip(variables, ids, grads, strict=True):
        if is_on_device(own) and is_on_device(by) and variable.gpu is not None:
            with _named(variable):
                steps.append(ApplyStep.of(variable, own, by))
        else:
            others.append((variable, own, by))
    refused: EmbStoreError | None = None
    try:
        apply_together(steps, global_step)
    except EmbStoreError as error:
        refused = error
    for variable, own, by in others:
        try:
            with _named(variable):
                variable.apply_gradients(own, by, global_step)
        except EmbStoreError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def _check_lengths(variables: Sequence[EmbeddingVariable], **arguments: Sequence[Any]) -> None:
    for variable in variables:
        if not isinstance(variable, EmbeddingVariable):
            raise InvalidArgumentError(
                f"variables must be EmbeddingVariables, got {type(variable).__name__}"
            )
    for name, of_each in arguments.items():
        if len(of_each) != len(variables):
            raise InvalidArgumentError(
                f"{name} must have one for each of {len(variables)} variables, got {len(of_each)}"
            )


@contextlib.contextmanager
def _named(variable: EmbeddingVariable) -> Iterator[None]:
    """Has errors name the variable."""
    try:
        yield
    except EmbStoreError as error:
        message, *rest = error.args or ("",)
        if variable.name not in str(message):
            error.args = (f"{variable.name}: {message}", *rest)
        raise
