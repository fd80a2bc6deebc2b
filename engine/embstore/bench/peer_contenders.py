"""Contenders of other projects: FBGEMM, TensorFlow and TFRA, with one thread. More are in
contenders.py and stores.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from embstore.bench.contenders import (
    INITIAL_ACCUMULATOR,
    KEYS_PER_LOAD,
    LEARNING_RATE,
    Contender,
    Ids,
    Ranks,
    Rows,
    split_into_loads,
)

__all__ = ["FbgemmTbe", "TensorFlowVariable", "TfraTable"]


class FbgemmTbe(Contender):
    """FBGEMM's table-batched embedding on the CPU with its fused Adagrad; dense ids, no hashing."""

    name = "FBGEMM"

    def __init__(self, keys: Ids, dim: int) -> None:
        import torch
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        torch.set_num_threads(1)
        self._torch = torch
        self._table = SplitTableBatchedEmbeddingBagsCodegen(
            [(keys.size, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=0.0,
        )
        self._table.split_embedding_weights()[0].fill_(1)
        for state in self._table.split_optimizer_states()[0]:
            state.fill_(INITIAL_ACCUMULATOR)
        self._places = np.random.default_rng(0).permutation(keys.size)

    def ids_of(self, ranks: Ranks) -> Any:
        """Returns the ids, and the offsets of bags of one id each."""
        ids = self._torch.from_numpy(self._places[ranks])
        return ids, self._torch.arange(ranks.size + 1)

    def lookup(self, ids: Any, out: Rows) -> Any:  # noqa: ARG002 - it has its own
        with self._torch.no_grad():
            return self._table(*ids)

    def train(self, ids: Any, out: Rows, grads: Rows) -> None:  # noqa: ARG002 - autograd's own
        self._table(*ids).backward(self._torch.from_numpy(grads))


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow

    try:
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:  # TensorFlow runs already
        if tensorflow.config.threading.get_intra_op_parallelism_threads() != 1:
            raise
    return tensorflow


class _InGraphs(Contender):
    """A contender of TensorFlow, which makes graphs of read(ids) and train(ids, grads)."""

    def __init__(
        self, ids: Ids, read: Callable[[Any], Any], train: Callable[[Any, Any], Any]
    ) -> None:
        """ids: the id of each rank."""
        self._tf = _tensorflow()
        self._ids = ids
        self._read = self._tf.function(read)
        self._train = self._tf.function(train)

    def ids_of(self, ranks: Ranks) -> Any:
        return self._tf.constant(self._ids[ranks])

    def lookup(self, ids: Any, out: Rows) -> Any:  # noqa: ARG002 - it has its own
        return self._read(ids)

    def train(self, ids: Any, out: Rows, grads: Rows) -> None:  # noqa: ARG002 - it has its own
        self._train(ids, self._tf.constant(grads))


class TensorFlowVariable(_InGraphs):
    """A variable with tf.compat.v1's Adagrad, in graphs: dense ids, no hashing."""

    name = "TensorFlow"

    def __init__(self, keys: Ids, dim: int) -> None:
        tf = _tensorflow()
        variable = tf.Variable(tf.ones((keys.size, dim)))
        optimizer = tf.compat.v1.train.AdagradOptimizer(
            LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
        )

        def read(ids: Any) -> Any:
            return tf.gather(variable, ids)

        def train(ids: Any, grads: Any) -> Any:
            rows = read(ids)
            sparse = tf.IndexedSlices(grads, ids, dense_shape=variable.shape)
            optimizer.apply_gradients([(sparse, variable)])
            return rows

        super().__init__(np.random.default_rng(0).permutation(keys.size), read, train)


class TfraTable(_InGraphs):
    """TFRA's dynamic embedding (a cuckoo hash in DRAM) with tf.compat.v1's Adagrad, in graphs."""

    name = "TFRA"

    def __init__(self, keys: Ids, dim: int) -> None:
        tf = _tensorflow()
        from tensorflow_recommenders_addons import dynamic_embedding

        table = dynamic_embedding.get_variable(
            f"bench{dim}", dim=dim, initializer=1.0, init_size=keys.size
        )
        self._table, self._dim = table, dim
        optimizer = dynamic_embedding.DynamicEmbeddingOptimizer(
            tf.compat.v1.train.AdagradOptimizer(
                LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
            )
        )

        def read(ids: Any) -> Any:
            return table.lookup(ids)

        # The stand-in for a batch's rows that a gradient tape can watch.
        shadow = dynamic_embedding.shadow_ops.ShadowVariable(table, name=f"rows{dim}")

        def train(ids: Any, grads: Any) -> Any:
            unique, places = tf.unique(ids)
            with tf.GradientTape() as tape:
                rows = dynamic_embedding.shadow_ops.embedding_lookup(shadow, unique)
                spread = tf.gather(rows, places)
                loss = tf.reduce_sum(spread * grads)
            optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])
            return spread

        super().__init__(keys, read, train)

    def load(self, max_keys: int = KEYS_PER_LOAD) -> None:
        for part in split_into_loads(self._ids, max_keys):
            self._table.upsert(self._tf.constant(part), self._tf.ones((part.size, self._dim)))
