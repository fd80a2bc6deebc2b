"""Models of many tables send one request per step to each server."""

from __future__ import annotations

import os
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sharded import assert_same
from tables_behind_sockets import TablesBehindSockets

import embstore as es

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")

TABLES, DIM, BATCH, STEPS = 3, 4, 8, 4

pytestmark = pytest.mark.timeout(120)


def requests(served: TablesBehindSockets) -> list[dict[str, int]]:
    """Returns each server's requests by kind, without those for signs of life."""
    counted = [server.requests() for server in served.servers]
    return [{kind: of[kind] for kind in of if kind != "PING"} for of in counted]


def ids(step: int) -> list[NDArray[np.int64]]:
    random = np.random.default_rng(step)
    return [random.integers(0, 30, (BATCH, 2)) for _ in range(TABLES)]


def features(**where: Any) -> dict[str, Any]:
    """Returns a feature for each table, and a second one for the first table."""
    tables = [
        es.keras.TableConfig(
            f"table{number}", None, DIM, es.initializers.RandomUniform(seed=number), **where
        )
        for number in range(TABLES)
    ]
    found = {
        table.name: es.keras.FeatureConfig(table.name, table, (None, 2), (None, DIM))
        for table in tables
    }
    found["again"] = es.keras.FeatureConfig("again", tables[0], (None, 2), (None, DIM))
    return found


def model_of(layer: Any) -> Any:
    """Returns an untrained, compiled model."""
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in features()}
    rows = keras.layers.Concatenate()(list(layer(inputs).values()))
    model = keras.Model(inputs, keras.ops.sum(rows, axis=-1, keepdims=True))
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


def batch(step: int) -> dict[str, NDArray[np.int64]]:
    return dict(zip(features(), [*ids(step), ids(step + 100)[0]], strict=True))


def trained(**where: Any) -> list[dict[str, NDArray[Any]]]:
    """Returns the rows of a trained Keras model."""
    layer = es.keras.DistributedEmbedding(features(**where))
    model = model_of(layer)
    for step in range(STEPS):
        model.train_on_batch(batch(step), np.ones((BATCH, 1), np.float32))
    found = [layer.variables_by_table[f"table{number}"] for number in range(TABLES)]
    exported = [variable.export() for variable in found]
    for variable in found:
        variable.close()
    return exported


def test_a_keras_model_looks_up_and_trains_its_tables_together(
    served: TablesBehindSockets,
) -> None:
    there = trained(shards=2)
    assert requests(served) == [{"LOOK_UP": STEPS, "PREPARE": STEPS, "COMMIT": STEPS}] * 2
    for got, wanted in zip(there, trained(partition_num=2), strict=True):
        assert_same(got, wanted)


def test_a_keras_model_reads_its_tables_together_to_serve(served: TablesBehindSockets) -> None:
    layer = es.keras.DistributedEmbedding(features(shards=2))
    model = model_of(layer)
    model.predict_on_batch(batch(0))  # an evaluation, which doesn't count for the ranking
    assert requests(served) == [{"LOOK_UP": 1}] * 2
    layer.serves = True
    model.predict_on_batch(batch(0))
    assert requests(served) == [{"LOOK_UP": 1, "SERVE": 1}] * 2


def test_a_keras_model_with_a_table_that_is_full_trains_no_table(
    served: TablesBehindSockets,
) -> None:
    few = es.StorageOption(es.StorageType.DRAM, storage_size=[64])
    tables = features(shards=2)
    tables["table1"].table.ev_option = es.EmbeddingVariableOption(few)
    layer = es.keras.DistributedEmbedding(tables)
    model = model_of(layer)
    with pytest.raises(Exception, match="table1"):  # TensorFlow raises its own error
        model.train_on_batch(batch(0), np.ones((BATCH, 1), np.float32))
    assert all("COMMIT" not in of_server for of_server in requests(served))
    assert [variable.total_count()[0] for variable in layer.variables_by_table.values()] == [0] * 3


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's")
def test_a_torch_optimizer_trains_its_tables_together(served: TablesBehindSockets) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'embstore[torch]'")
    variables = [
        es.get_embedding_variable(
            f"table{number}", DIM, optimizer=es.optimizers.Adagrad(0.1), shards=2
        )
        for number in range(TABLES)
    ]
    layers = torch.nn.ModuleList(es.torch.Embedding(variable) for variable in variables)
    optimizer = es.torch.Optimizer(layers)
    ids_of = {variable: itemgetter(number) for number, variable in enumerate(variables)}
    pulled = es.prefetching([ids(step) for step in range(STEPS)], ids_of)
    for of_step in pulled:
        rows = [
            layer(torch.from_numpy(of_table)).sum()
            for layer, of_table in zip(layers, of_step, strict=True)
        ]
        torch.stack(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert requests(served) == [{"LOOK_UP": STEPS, "PREPARE": STEPS, "COMMIT": STEPS}] * 2
