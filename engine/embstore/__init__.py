"""Embedding variables on GPU memory, DRAM, persistent memory and SSD.

    import embstore as es

    with es.get_embedding_variable(
        "var_0",
        embedding_dim=3,
        initializer=es.initializers.Ones(),
        optimizer=es.optimizers.Adagrad(learning_rate=0.1),
    ) as var:
        rows = var.lookup(ids, train=True)
        var.apply_gradients(ids, gradients_of_rows)

`embstore.torch` has variables as PyTorch modules, and `embstore.keras` as layers for Keras 3; both
are imported on first use and need torch and keras. `embstore.openembedding` has the Keras layers
under OpenEmbedding's names. `embstore.cluster` has tables in other processes and on other
computers, and needs Ray. `embstore.deeprec` has DeepRec's names on TensorFlow's graph mode, and
needs TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from embstore import devices, errors, initializers, optimizers
from embstore.checkpoint.persist.persisting import (
    discard_persisted,
    persist,
    persisted,
    restore_persisted,
    should_persist,
)
from embstore.checkpoint.restore import restore
from embstore.checkpoint.save import SaveReport, save, save_incremental
from embstore.checkpoint.training.checkpoints import Checkpoints
from embstore.devices import Access
from embstore.devices.recording import Caches, phase_times_ns, record_accesses
from embstore.gpu.device_array import DeviceArray
from embstore.options import (
    CacheStrategy,
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    IoScheme,
    L2WeightEvict,
    SSDHashOption,
    StorageOption,
    StorageType,
)
from embstore.row_files.reading import read_rows
from embstore.row_files.writing import write_rows
from embstore.table.getting import get_embedding_variable
from embstore.table.many import apply_many, lookup_many
from embstore.table.monitor import Monitor
from embstore.table.prefetching import prefetching
from embstore.threads import get_num_threads, set_num_threads
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from types import ModuleType

    from embstore import cluster as cluster
    from embstore import deeprec as deeprec
    from embstore import keras as keras
    from embstore import openembedding as openembedding
    from embstore import torch as torch

__all__ = [
    "Access",
    "CBFFilter",
    "CacheStrategy",
    "Caches",
    "Checkpoints",
    "CounterFilter",
    "DeviceArray",
    "EmbeddingVariable",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "IoScheme",
    "L2WeightEvict",
    "Monitor",
    "SSDHashOption",
    "SaveReport",
    "StorageOption",
    "StorageType",
    "apply_many",
    "devices",
    "discard_persisted",
    "errors",
    "get_embedding_variable",
    "get_num_threads",
    "initializers",
    "lookup_many",
    "optimizers",
    "persist",
    "persisted",
    "phase_times_ns",
    "prefetching",
    "read_rows",
    "record_accesses",
    "restore",
    "restore_persisted",
    "save",
    "save_incremental",
    "set_num_threads",
    "should_persist",
    "write_rows",
]


# Imported on first use: torch takes seconds and is optional, and few programs need the others.
_ON_FIRST_USE = {
    "cluster": "embstore.cluster",
    "deeprec": "embstore.deeprec",
    "keras": "embstore.keras",
    "openembedding": "embstore.openembedding",
    "torch": "embstore.torch",
}


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return importlib.import_module(_ON_FIRST_USE[name])
    raise AttributeError(f"module 'embstore' has no attribute {name!r}")
