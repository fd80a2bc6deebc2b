"""Tables that are made from PyTorch's weights, and weights from tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidArgumentError, StoreFullError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("partition_num", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_table_has_the_rows_of_the_weights(dtype: Any, partition_num: int) -> None:
    weights = torch.nn.Embedding(100, 5).weight.to(dtype)
    adagrad = es.optimizers.Adagrad(0.1)
    layer = es.torch.from_pretrained(
        weights, "items", optimizer=adagrad, partition_num=partition_num, padding_idx=3
    )
    with layer.variable:
        ids = torch.randint(100, (7, 4))
        assert torch.equal(layer(ids), weights[ids].float())
        layer(torch.tensor([1, 500])).sum().backward()
        assert len(layer.variable) == 101


def test_weights_come_back_from_a_table_unchanged() -> None:
    weights = torch.randn(70_000, 2)
    layer = es.torch.from_pretrained(weights, "items", ev_option=es.EmbeddingVariableOption())
    with layer.variable:
        back = es.torch.to_torch(layer.variable)
        assert torch.equal(back.weight, weights)
        assert back.weight.requires_grad
        more = es.torch.to_torch(layer.variable, 70_010)
        wanted = layer.variable.lookup(np.arange(70_000, 70_010))
        assert torch.equal(more.weight[70_000:], torch.from_numpy(wanted))


def test_a_table_that_pytorch_can_not_hold_is_refused() -> None:
    with es.get_embedding_variable("items", 2, optimizer=es.optimizers.SGD(0.1)) as items:
        assert es.torch.to_torch(items).weight.shape == (0, 2)
        items.put([5], np.ones((1, 2), np.float32))
        with pytest.raises(InvalidArgumentError, match="has the key 5, which is no row of 5"):
            es.torch.to_torch(items, 5)
        items.put([-1], np.ones((1, 2), np.float32))
        with pytest.raises(InvalidArgumentError, match="has the key -1"):
            es.torch.to_torch(items)


@pytest.mark.parametrize("key", [2**40, 2**63 - 1])
def test_a_key_too_large_for_memory_is_named(key: int) -> None:
    with es.get_embedding_variable("items", 4) as items:
        items.put([key], np.ones((1, 4), np.float32))
        with pytest.raises(InvalidArgumentError, match=rf"largest key of items is {key}; .*export"):
            es.torch.to_torch(items)


@pytest.mark.filterwarnings("ignore::UserWarning")  # about nested and quantized tensors
def test_wrong_weights_are_refused() -> None:
    floats = torch.ones(3, 2)
    wrong: list[tuple[Any, str]] = [
        (None, "NoneType"),
        (np.ones((3, 2)), "ndarray"),
        (torch.ones(3), "1-D"),
        (floats.to_sparse(), r"a sparse one; give weights\.to_dense"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested one"),
        (floats.to(torch.complex64), "one of complex numbers"),
        (torch.quantize_per_tensor(floats, 0.1, 0, torch.quint8), "a quantized one"),
        (floats.to("meta"), "one on the device meta"),
    ]
    for weights, got in wrong:
        with pytest.raises(InvalidArgumentError, match=rf"weights must be a .*, got {got}"):
            es.torch.from_pretrained(weights, "items")


def test_weights_that_float32_cant_hold_are_refused() -> None:
    weights = torch.full((3, 2), 1e300, dtype=torch.float64)
    with pytest.raises(InvalidArgumentError, match="weights must be at most"):
        es.torch.from_pretrained(weights, "items")
    layer = es.torch.from_pretrained(torch.full((3, 2), float("inf")).double(), "items")
    with layer.variable:
        assert layer(torch.tensor([1])).isinf().all()


def test_to_torch_refuses_an_object_that_is_no_variable() -> None:
    nothing: Any = None
    with pytest.raises(InvalidArgumentError, match="variable must be an embstore"):
        es.torch.to_torch(nothing, 5)


def test_a_table_that_is_too_small_is_not_left_behind(tmp_path: Path) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, tmp_path, ["1K", "64K"])
    option = es.EmbeddingVariableOption(storage)
    for _ in range(2):  # the files of the first are free again
        with pytest.raises(StoreFullError):
            es.torch.from_pretrained(torch.ones(100_000, 2), "items", ev_option=option)
