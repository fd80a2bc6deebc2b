"""Adds DeepRec's names to `tensorflow.compat.v1`, and extends functions that are there."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec import feature_columns, lookup, monitored
from embstore.deeprec.contrib import add_modules
from embstore.deeprec.deeprec_optimizers import DEEPREC_OPTIMIZERS
from embstore.deeprec.making import get_embedding_variable
from embstore.deeprec.options import EmbeddingVariableOption, StorageOption
from embstore.deeprec.row_training import TrainsRowsMixin, extend_optimizer
from embstore.deeprec.rules import RULES
from embstore.deeprec.saver import Saver
from embstore.deeprec.sessions import close_tables_with_sessions
from embstore.deeprec.tensorflow_inside import (
    basic_session_run_hooks,
    monitored_session,
    saver_module,
    sequence_feature_column,
)
from embstore.deeprec.variable import EMBEDDING_VARIABLES, EmbeddingVariable
from embstore.deeprec.warm_start import extend_init_from_checkpoint, extend_warm_start
from embstore.options import (
    CBFFilter,
    CounterFilter,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
)

__all__ = ["add_names"]


def add_names() -> None:
    """Adds all names. Called once, when `embstore.deeprec` is imported."""
    for name, value in _NEW.items():
        setattr(tf, name, value)
    tf.GraphKeys.EMBEDDING_VARIABLES = EMBEDDING_VARIABLES
    _add_lookups()
    _add_feature_columns()
    _add_optimizers()
    _add_savers()
    close_tables_with_sessions()
    tf.contrib = add_modules()


_NEW: dict[str, Any] = {
    "CBFFilter": CBFFilter,
    "CounterFilter": CounterFilter,
    "EmbeddingVariable": EmbeddingVariable,
    "EmbeddingVariableOption": EmbeddingVariableOption,
    "GlobalStepEvict": GlobalStepEvict,
    "InitializerOption": InitializerOption,
    "L2WeightEvict": L2WeightEvict,
    "StorageOption": StorageOption,
    "get_embedding_variable": get_embedding_variable,
}


def _add_lookups() -> None:
    tf.gradients = lookup.extend_gradients(tf.gradients)
    tf.nn.embedding_lookup = lookup.extend_embedding_lookup(tf.nn.embedding_lookup)
    tf.nn.embedding_lookup_sparse = lookup.extend_embedding_lookup_sparse(
        tf.nn.embedding_lookup_sparse
    )
    tf.nn.safe_embedding_lookup_sparse = lookup.extend_safe_embedding_lookup_sparse(
        tf.nn.safe_embedding_lookup_sparse
    )


def _add_feature_columns() -> None:
    names = ("categorical_column_with_embedding", "sequence_categorical_column_with_embedding")
    for name in names:
        setattr(tf.feature_column, name, getattr(feature_columns, name))
    setattr(sequence_feature_column, names[1], getattr(feature_columns, names[1]))
    tf.feature_column.embedding_column = feature_columns.extend_embedding_column(
        tf.feature_column.embedding_column
    )


def _add_optimizers() -> None:
    theirs = [
        member
        for name, member in vars(tf.train).items()
        if name.endswith("Optimizer")
        and isinstance(member, type)
        and issubclass(member, tf.train.Optimizer)
        and member is not tf.train.Optimizer
        and not issubclass(member, TrainsRowsMixin)
    ]
    for optimizer in (*theirs, *DEEPREC_OPTIMIZERS):
        name = optimizer.__name__
        setattr(tf.train, name, extend_optimizer(optimizer, RULES.get(name)))


def _add_savers() -> None:
    for module in (tf.train, saver_module):  # MonitoredSession finds it in the latter
        module.Saver = Saver
    for module in (tf.train, basic_session_run_hooks):
        module.CheckpointSaverHook = monitored.CheckpointSaverHook
    for module in (tf.train, monitored_session):
        module.Scaffold = monitored.Scaffold
    tf.train.init_from_checkpoint = extend_init_from_checkpoint(tf.train.init_from_checkpoint)
    tf.train.warm_start = extend_warm_start(tf.train.warm_start)
    tf.train.MonitoredTrainingSession = monitored.extend_monitored_training_session(
        tf.train.MonitoredTrainingSession
    )
