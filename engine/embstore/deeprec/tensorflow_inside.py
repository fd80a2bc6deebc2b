"""All uses of TensorFlow's private parts; pyproject.toml limits its version for them."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.client import session as session_module
from tensorflow.python.feature_column import feature_column as old_columns
from tensorflow.python.feature_column import feature_column_v2 as columns
from tensorflow.python.feature_column import sequence_feature_column, utils
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY, Trackable
from tensorflow.python.training import basic_session_run_hooks, monitored_session
from tensorflow.python.training import saver as saver_module
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

__all__ = [
    "VARIABLE_VALUE_KEY",
    "SaveSpec",
    "SaveableObject",
    "Trackable",
    "basic_session_run_hooks",
    "checkpoint_prefix",
    "columns",
    "is_open_here",
    "monitored_session",
    "objects_of_saver",
    "objects_of_saver_by_name",
    "old_columns",
    "saver_module",
    "sequence_feature_column",
    "session_module",
    "utils",
]


def is_open_here(session: Any) -> bool:
    """Returns whether the session isn't closed, and runs in this process alone."""
    return bool(session._session) and not session._closed and not session.sess_str


def objects_of_saver(saver: Any) -> list[Any]:
    """Returns the variables and other objects that a built saver saves."""
    chosen = saver._var_list
    return list(chosen.values() if isinstance(chosen, dict) else chosen or ())


def objects_of_saver_by_name(saver: Any) -> dict[str, Any]:
    """Returns the whole TensorFlow variables that a built saver saves, by their names in its
    checkpoints; without slices of a partitioned variable and other kinds of objects.
    """
    chosen = saver._var_list
    named = (
        chosen
        if isinstance(chosen, dict)
        else {each.op.name: each for each in objects_of_saver(saver)}
    )
    return {
        name: each
        for name, each in named.items()
        if isinstance(each, tf.Variable) and each._save_slice_info is None
    }


def checkpoint_prefix(saver: Any, save_path: str, step: int | None) -> str:
    """Returns the prefix that the saver gives a checkpoint of that step."""
    if step is None:
        return save_path
    return f"{save_path}-{step:08d}" if saver._pad_step_number else f"{save_path}-{step}"
