"""Hooks on the parameter of a variable's rows act as those on a dense embedding's weight."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable

import embstore as es
from embstore.errors import InvalidArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

KEYS = 4
DIM = 3


@pytest.fixture
def var(make_variable: MakeVariable) -> es.EmbeddingVariable:
    zeros = es.initializers.Zeros()
    return make_variable(dim=DIM, optimizer=es.optimizers.SGD(1.0), initializer=zeros)


def rows(var: es.EmbeddingVariable) -> Any:
    return torch.from_numpy(var.lookup(np.arange(KEYS)))


def backward(layer: Any) -> None:
    """Runs two passes. The gradients of ids 1 to 3 are 4, 2 and -3, then 0.5, 0 and 0."""
    by = torch.tensor([1.0, 2.0, 3.0, -3.0]).unsqueeze(1)
    (layer(torch.tensor([1, 2, 1, 3])) * by).sum().backward()
    (layer(torch.tensor([1])) * 0.5).sum().backward()


@pytest.mark.parametrize("gathers", [False, True])
def test_a_hook_changes_the_gradient_of_each_pass_as_that_of_a_weight(
    var: es.EmbeddingVariable, gathers: bool
) -> None:
    layer = es.torch.Embedding(var)
    twin = torch.nn.Embedding(KEYS, DIM, _weight=torch.zeros(KEYS, DIM))
    optimizer = es.torch.Optimizer(layer) if gathers else None
    for parameter in (layer.rows, twin.weight):
        parameter.register_hook(lambda grad: grad.clamp(-1, 1))
        parameter.register_hook(lambda grad: grad * 2)
        parameter.register_hook(lambda _: None)
    for model in (layer, twin):
        backward(model)
    if optimizer is not None:
        optimizer.step()
    assert torch.equal(rows(var), -twin.weight.grad)
    assert var.get_frequency(range(KEYS)).tolist() == [0, 3, 1, 1]


def test_a_hook_gets_a_row_for_each_look_up_and_the_sum_in_the_first(
    var: es.EmbeddingVariable,
) -> None:
    layer = es.torch.EmbeddingBag(var, "sum")
    got: list[Any] = []
    layer.rows.register_hook(got.append)
    layer(torch.tensor([[5, 7, 5]])).sum().backward()
    assert got[0][:, 0].tolist() == [2.0, 1.0, 0.0]


def test_a_hook_sees_all_look_ups_of_a_pass_at_once(var: es.EmbeddingVariable) -> None:
    one, other = es.torch.Embedding(var), es.torch.Embedding(var)
    one.rows.register_hook(lambda grad: grad.clamp(max=1.5))
    (one(torch.tensor([1])) + other(torch.tensor([1]))).sum().backward()
    assert rows(var)[1].tolist() == [-1.5] * DIM


def test_a_hook_that_was_removed_is_not_called(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    layer.rows.register_hook(lambda grad: grad * 0).remove()
    layer(torch.tensor([1])).sum().backward()
    assert rows(var)[1].tolist() == [-1.0] * DIM


def test_a_gradient_that_a_hook_keeps_is_taken_as_it_was(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    optimizer = es.torch.Optimizer(layer)
    kept = torch.full((1, DIM), 2.0)
    layer.rows.register_hook(lambda _: kept)
    layer(torch.tensor([1])).sum().backward()
    kept.fill_(9)
    optimizer.step()
    assert rows(var)[1].tolist() == [-2.0] * DIM


@pytest.mark.parametrize("gathers", [False, True])
def test_no_row_is_trained_if_a_hook_fails(make_variable: MakeVariable, gathers: bool) -> None:
    first, second = (es.torch.Embedding(make_variable(name=name)) for name in ("a", "b"))
    if gathers:
        optimizer = es.torch.Optimizer([first, second])

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    second.rows.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        (first(torch.tensor([1])) + second(torch.tensor([1]))).sum().backward()
    if gathers:
        assert first.rows.grad is None
        optimizer.step()
    assert first.variable.total_count()[0] == second.variable.total_count()[0] == 0


@pytest.mark.parametrize(
    ("returned", "got"), [(torch.ones(1, DIM), r"got \(1, 3\)"), (2.0, "got float")]
)
def test_a_hook_returns_a_gradient_like_the_one_that_it_got(
    var: es.EmbeddingVariable, returned: Any, got: str
) -> None:
    layer = es.torch.Embedding(var)
    hook: Any = lambda _: returned  # noqa: E731
    layer.rows.register_hook(hook)
    with pytest.raises(InvalidArgumentError, match=rf"a hook on .* that it got, \(2, 3\), {got}"):
        layer(torch.tensor([1, 2])).sum().backward()
    assert var.total_count()[0] == 0


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_over_several_parameters_is_called(var: es.EmbeddingVariable, mode: str) -> None:
    model = torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1))
    calls: list[Any] = []
    handle = torch.autograd.graph.register_multi_grad_hook(
        list(model.parameters()), calls.append, mode=mode
    )
    model(torch.tensor([1, 2])).sum().backward()
    assert len(calls) == 1
    handle.remove()


def test_a_hook_after_accumulation_is_refused(var: es.EmbeddingVariable) -> None:
    layer = es.torch.Embedding(var)
    for _ in range(2):  # look-ups have such a hook of their own
        with pytest.raises(UnsupportedError, match=r"use register_hook.*rows\.grad after backward"):
            layer.rows.register_post_accumulate_grad_hook(lambda _: None)
        layer(torch.tensor([1])).sum().backward()


def test_a_hook_that_holds_the_variable_does_not_keep_it_alive() -> None:
    var = es.get_embedding_variable("held", DIM, optimizer=es.optimizers.SGD(0.1))
    layer = es.torch.Embedding(var)

    def hook(grad: Any, held: es.EmbeddingVariable = var) -> Any:
        return grad * held.learning_rate

    layer.rows.register_hook(hook)
    layer(torch.tensor([1])).sum().backward()
    gone = weakref.ref(var)
    del var, layer, hook
    gc.collect()
    assert gone() is None
