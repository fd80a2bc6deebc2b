"""Gradients that an `embstore.torch.Optimizer` gathers: none is lost, trained twice, or unseen."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable

import embstore as es
from embstore.errors import InvalidArgumentError, StoreFullError

torch = pytest.importorskip("torch")

SGD = es.optimizers.SGD(0.5)


@pytest.fixture
def var(make_variable: MakeVariable) -> es.EmbeddingVariable:
    """Returns a variable whose initial rows are ones."""
    return make_variable(optimizer=SGD)


def values(var: es.EmbeddingVariable, *ids: int) -> Any:
    """Returns the first value of each row; the others are the same."""
    return var.lookup(ids, train=True)[:, 0].tolist()


def test_a_buffer_of_gradients_may_be_used_again_before_the_step(
    var: es.EmbeddingVariable,
) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    buffer = torch.ones(4, 3)
    views: list[Callable[[Any, Any], None]] = [
        lambda rows, of: rows.backward(of[:2]),
        lambda rows, of: rows.view(-1).backward(of[:2].view(-1)),
        lambda rows, of: (rows * 1).backward(of[:2]),
    ]
    for id, backward in enumerate(views):
        buffer.fill_(1)
        backward(layer(torch.tensor([2 * id, 2 * id + 1])), buffer)
        buffer.fill_(100)
    optimizer.step()
    assert values(var, *range(6)) == [0.5] * 6


@pytest.mark.parametrize("looked_at", [False, True])
def test_gradients_that_were_set_to_zeros_are_not_trained_again(
    var: es.EmbeddingVariable, looked_at: bool
) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    for id in range(4):
        layer(torch.tensor([id])).sum().backward()
        if looked_at:
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1e9)
        optimizer.step()
        layer.zero_grad(set_to_none=False)
    assert var.get_frequency(range(4)).tolist() == [1] * 4
    assert var.get_version(range(4)).tolist() == [0, 1, 2, 3]


def test_gradients_that_are_zero_by_themselves_are_trained(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    (layer(torch.tensor([3])) * 0).sum().backward()
    torch.nn.utils.clip_grad_value_(layer.parameters(), 1.0)
    optimizer.step()
    assert var.get_frequency([3]).tolist() == [1]


@pytest.mark.parametrize("gathers", [False, True])
def test_gradients_for_autograd_grad_are_refused_and_train_nothing(
    var: es.EmbeddingVariable, gathers: bool
) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer) if gathers else None
    dense = torch.nn.Linear(3, 1)
    loss = dense(layer(torch.tensor([1, 2]))).sum()
    with pytest.raises(InvalidArgumentError, match=r"autograd\.grad.*dense_parameters"):
        torch.autograd.grad(loss, [*layer.parameters(), *dense.parameters()], retain_graph=True)
    torch.autograd.grad(loss, [*dense.parameters()], retain_graph=True)
    assert values(var, 1, 2) == [1.0, 1.0]
    assert layer.rows.grad is None
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    assert values(var, 1) == pytest.approx([1.0 - 0.5 * dense.weight[0, 0].item()])


def test_a_backward_pass_for_an_optimizer_that_is_gone_is_refused(
    var: es.EmbeddingVariable,
) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    layer(torch.tensor([1])).sum().backward()
    optimizer.step()
    del optimizer
    gc.collect()
    with pytest.raises(InvalidArgumentError, match="Optimizer that trained it is gone"):
        layer(torch.tensor([1])).sum().backward()
    again = es.torch.Optimizer(layer)
    again.zero_grad()
    layer(torch.tensor([1])).sum().backward()
    again.step()
    assert values(var, 1) == [0.0]


def test_a_step_within_a_backward_pass_is_refused(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    dense = torch.nn.Linear(3, 1)
    dense.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(InvalidArgumentError, match="within a backward pass"):
        dense(layer(torch.tensor([1]))).sum().backward()


@pytest.mark.parametrize("retry", [True, False])
def test_a_step_that_failed_under_a_scaler_divides_by_the_scale_once(
    make_variable: MakeVariable, retry: bool
) -> None:
    var = make_variable(optimizer=SGD, storage=es.StorageOption(storage_size=[16]))
    var.put([7], np.ones((1, 3), np.float32))
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(layer(torch.tensor([1])).sum()).backward()
    with pytest.raises(StoreFullError):
        scaler.step(optimizer)
    var.remove([7])
    if retry:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.zero_grad()
        layer(torch.tensor([1])).sum().backward()
        optimizer.step()
    assert values(var, 1) == [0.5]


def test_rates_that_were_loaded_are_those_of_the_next_step(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer, lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def train() -> float:
        layer(torch.tensor([1])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return var.learning_rate

    assert [train(), train()] == [0.5, 0.25]
    states = optimizer.state_dict(), scheduler.state_dict()
    assert [train(), train()] == [0.125, 0.0625]
    var.learning_rate = 0.125  # as a restore of the rows might
    optimizer.load_state_dict(states[0])
    scheduler.load_state_dict(states[1])
    assert [train(), train()] == [0.125, 0.0625]
    optimizer.load_state_dict(states[0])
    scheduler.load_state_dict(states[1])
    assert train() == 0.125


def test_a_rate_may_be_a_tensor_and_none_is_the_variables_own(make_variable: MakeVariable) -> None:
    one, other = make_variable(name="one"), make_variable(name="other")
    optimizer = es.torch.Optimizer(one, lr=torch.tensor(0.25))
    optimizer.add_param_group({"params": [es.torch.Embedding(other).rows], "lr": None})
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, other.learning_rate]
    optimizer.step()
    assert (one.learning_rate, other.learning_rate) == (0.25, 0.1)
