"""Any sequence of calls, on any storage type, gives what a plain table gives: bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_storage import StorageOf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plain_table import PlainTable

import embstore as es

INT64 = np.iinfo(np.int64)

# Few keys, so that sequences meet them again; the corners of int64 among them.
KEYS = st.one_of(
    st.integers(-4, 12),
    st.sampled_from([int(INT64.min), int(INT64.min) + 1, int(INT64.max), -(2**32), 2**32]),
    st.integers(int(INT64.min), int(INT64.max)),
)
BATCHES = st.lists(KEYS, max_size=24)

OPTIMIZERS = st.sampled_from(
    [
        es.optimizers.SGD(0.1),
        es.optimizers.Adagrad(0.1),
        es.optimizers.Adam(0.01),
        es.optimizers.Ftrl(0.1, l1_regularization_strength=2.0, l2_regularization_strength=1e-5),
    ]
)


@st.composite
def applies(draw: st.DrawFn, dim: int) -> tuple[str, Any]:
    ids = draw(BATCHES)
    grads = draw(hnp.arrays(np.float32, (len(ids), dim), elements=st.floats(-100, 100, width=32)))
    return "apply", (ids, grads, draw(st.none() | st.integers(0, 2**40)))


def calls(dim: int) -> st.SearchStrategy[list[tuple[str, Any]]]:
    read = st.tuples(st.sampled_from(["lookup", "serve", "freq", "version", "tier"]), BATCHES)
    whole = st.tuples(st.sampled_from(["export", "count"]), st.none())
    return st.lists(applies(dim) | applies(dim) | read | whole, max_size=12)


def same_bits(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    return (
        got.shape == wanted.shape
        and got.dtype == wanted.dtype
        and got.tobytes() == wanted.tobytes()
    )


def check_call(var: es.EmbeddingVariable, plain: PlainTable, name: str, argument: Any) -> None:
    if name == "apply":
        ids, grads, step = argument
        var.apply_gradients(np.array(ids, np.int64), grads, step)
        plain.apply_gradients(ids, grads, step)
    elif name in ("lookup", "serve"):
        rows = var.lookup(np.array(argument, np.int64), train=name == "lookup")
        assert same_bits(rows, plain.lookup(argument))
    elif name == "export":
        check_export(var, plain)
    elif name == "count":
        assert var.total_count() == plain.total_count()
    else:
        readers: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "freq": (var.get_frequency, plain.get_frequency),
            "version": (var.get_version, plain.get_version),
            "tier": (var.lookup_tier, plain.lookup_tier),
        }
        read, read_plain = readers[name]
        assert read(np.array(argument, np.int64)).tolist() == read_plain(argument)


def check_export(var: es.EmbeddingVariable, plain: PlainTable) -> None:
    got, wanted = var.export(), plain.export()
    assert list(got) == list(wanted)
    for column in wanted:
        assert same_bits(got[column], wanted[column]), column


@pytest.mark.parametrize("partition_num", [1, 3])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_sequence_of_calls_gives_what_a_plain_table_gives(
    data: st.DataObject,
    storage_type: es.StorageType,
    storage_of: StorageOf,
    partition_num: int,
) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16, 17, 33]), label="dim")
    rows = data.draw(st.sampled_from([1, 2, 8, 4096]), label="default_value_dim")
    optimizer = data.draw(OPTIMIZERS, label="optimizer")
    initializer = es.initializers.RandomNormal(stddev=1.0, seed=7)
    var = es.get_embedding_variable(
        "var",
        dim,
        optimizer=optimizer,
        ev_option=es.EmbeddingVariableOption(
            storage_option=storage_of(storage_type, 1 << 18),
            init_option=es.InitializerOption(initializer, default_value_dim=rows),
        ),
        partition_num=partition_num,
    )
    with var:
        plain = PlainTable(initializer((rows, dim)), optimizer)
        for name, argument in data.draw(calls(dim), label="calls"):
            check_call(var, plain, name, argument)
        check_export(var, plain)


@pytest.mark.parametrize(
    "optimizer",
    [
        es.optimizers.SGD(0.1),
        es.optimizers.Adagrad(0.1),
        es.optimizers.Adam(0.01),
        es.optimizers.Ftrl(0.1, l1_regularization_strength=2.0, l2_regularization_strength=1e-5),
    ],
    ids=lambda optimizer: optimizer.name,
)
@pytest.mark.parametrize("dim", [1, 16, 30])
def test_a_long_training_with_skewed_keys_gives_what_a_plain_table_gives(
    storage_type: es.StorageType,
    storage_of: StorageOf,
    optimizer: es.optimizers.Optimizer,
    dim: int,
) -> None:
    random = np.random.RandomState(5)
    initializer = es.initializers.TruncatedNormal(seed=3)
    var = es.get_embedding_variable(
        "var",
        dim,
        initializer=initializer,
        optimizer=optimizer,
        ev_option=es.EmbeddingVariableOption(storage_option=storage_of(storage_type)),
    )
    with var:
        plain = PlainTable(initializer((4096, dim)), optimizer)
        for _ in range(30):
            ids = (random.zipf(1.3, 200) % 1500) * 2_654_435_761
            grads = random.standard_normal((len(ids), dim)).astype(np.float32)
            assert same_bits(var.lookup(ids, train=True), plain.lookup(ids.tolist()))
            var.apply_gradients(ids, grads)
            plain.apply_gradients(ids.tolist(), grads, None)
        check_export(var, plain)
