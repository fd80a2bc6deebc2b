"""`tf.train.init_from_checkpoint` and `warm_start`, which refuse embedding variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec.variable import EMBEDDING_VARIABLES, EmbeddingVariable, variables_of
from embstore.errors import UnsupportedError

__all__ = ["extend_init_from_checkpoint", "extend_warm_start"]


def extend_init_from_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has it refuse embedding variables: it replaces initializers, and those don't restore rows."""

    @functools.wraps(original)
    def init_from_checkpoint(ckpt_dir_or_file: Any, assignment_map: Any) -> Any:
        pairs = assignment_map.items() if hasattr(assignment_map, "items") else assignment_map
        for _, target in pairs:
            _refuse("assignment_map", _embedding_variables_in(target))
        return original(ckpt_dir_or_file, assignment_map)

    return init_from_checkpoint


def extend_warm_start(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has it refuse embedding variables, which its default pattern matches too."""

    @functools.wraps(original)
    def warm_start(
        ckpt_to_initialize_from: Any, vars_to_warm_start: Any = ".*", *others: Any, **options: Any
    ) -> Any:
        is_list = isinstance(vars_to_warm_start, list)
        for each in vars_to_warm_start if is_list else [vars_to_warm_start]:
            if each is None or isinstance(each, str):
                matching = tf.get_collection(EMBEDDING_VARIABLES, scope=each)
                # TensorFlow matches a list's patterns with variables that aren't trained, too.
                each = [variable for variable in matching if is_list or variable.trainable]
            _refuse("vars_to_warm_start", _embedding_variables_in(each))
        return original(ckpt_to_initialize_from, vars_to_warm_start, *others, **options)

    return warm_start


def _refuse(argument: str, variables: Iterable[EmbeddingVariable]) -> None:
    for variable in variables:
        raise UnsupportedError(
            f"{argument}: {variable.op.name} is an embedding variable, whose rows come back in a "
            "session, by tf.train.Saver([variable]).restore(session, path); name other variables "
            "alone"
        )


def _embedding_variables_in(target: Any) -> Iterable[EmbeddingVariable]:
    """Returns a target's embedding variables. target: a variable, a list of them, a variable's
    name, or a scope's, which ends with "/".
    """
    if isinstance(target, EmbeddingVariable):
        return [target]
    if isinstance(target, (list, tuple)):
        return [each for each in target if isinstance(each, EmbeddingVariable)]
    if not isinstance(target, str):
        return []
    known = variables_of(tf.get_default_graph())
    scope = target.strip("/")
    return [
        each
        for each in known
        if scope in ("", each.op.name) or str(each.op.name).startswith(f"{scope}/")
    ]
