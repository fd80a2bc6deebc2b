"""Steps of PyTorch's modules on a GPU never make the host wait. These tests need no GPU.

The tensors are fake ones on the device "meta", which have shapes but no values. A call that needs a
value, or a shape that depends on values, is therefore an error. A copy to the host or from it is
one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_storage import MakeVariable

import embstore as es
from embstore.errors import InvalidArgumentError
from embstore.gpu.batches import BatchConditions

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import (  # noqa: E402
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

aten = torch.ops.aten

DIM = 4
BAGS = 3  # of each look-up of bags


class NoWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses calls that fake tensors allow: copies to or from the host, and masks as indices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        if func in (aten._to_copy.default, aten.copy_.default):
            assert args[func is aten.copy_.default].device == out.device, func
        if func in (aten.index_put.default, aten.index_put_.default):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), func
        return out


def refuse_values(*_: Any, **__: Any) -> Any:
    raise AssertionError("values of the host are copied to the GPU")


class Step:
    """The tensors of a step on the fake GPU, and the updates that it asked for."""

    def __init__(self) -> None:
        self.applied: list[BatchConditions] = []

    @staticmethod
    def ids(count: int = 6) -> Any:
        return torch.empty(count, dtype=torch.int64, device="meta")

    def of(
        self,
        variable: es.EmbeddingVariable,
        ids: Any,
        grads: Any,
        conditions: BatchConditions,
        bags: Any,
    ) -> BatchConditions:
        """Replaces `ApplyStep.of`."""
        del variable
        assert ids.dim() == 1
        assert grads.shape == (len(ids) if bags is None else BAGS, DIM)
        assert grads.is_meta
        for array, shape in (
            (bags, ids.shape),
            (conditions.keep_mask, ids.shape),
            (conditions.refusal, (1,)),
            (conditions.skip, (1,)),
        ):
            if array is not None:
                told: Any = array
                assert (told.shape, told.dtype, told.is_meta) == (shape, torch.int64, True)
        return conditions


@pytest.fixture
def var(make_variable: MakeVariable) -> es.EmbeddingVariable:
    var = make_variable(dim=DIM)
    es.torch.Embedding(var)  # makes its parameter, which is no fake
    return var


@pytest.fixture
def step(var: es.EmbeddingVariable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    del var  # must be made first
    # A step of any optimizer drops what is known of the backward passes of earlier tests.
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1).step()
    step = Step()

    def lookup_many(_: Any, ids: Any, *, train: bool, count: bool) -> Any:
        del train, count
        return [torch.empty((*own.shape, DIM), device=own.device) for own in ids]

    monkeypatch.setattr(es.EmbeddingVariable, "gpu", property(lambda _: "meta"))
    monkeypatch.setattr("embstore.torch.lookup.lookup_many", lookup_many)
    monkeypatch.setattr("embstore.torch.rows.ApplyStep", step)
    monkeypatch.setattr("embstore.torch.rows.apply_together", lambda of, _: step.applied.extend(of))
    for module, name in ((torch, "tensor"), (torch.Tensor, "new_tensor")):
        monkeypatch.setattr(module, name, refuse_values)
    with FakeTensorMode(allow_non_fake_inputs=True), NoWaits():  # type: ignore[no-untyped-call]
        yield step


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_step_needs_no_value_of_a_tensor(
    var: es.EmbeddingVariable, step: Step, padding_idx: int | None, gathers: bool, unscales: bool
) -> None:
    layer = es.torch.Embedding(var, padding_idx=padding_idx)
    bag = es.torch.EmbeddingBag(var, padding_idx=padding_idx)
    collection = es.torch.EmbeddingBagCollection({"a": bag, "b": bag})
    sequences = es.torch.EmbeddingCollection({"a": layer, "b": layer})
    optimizer = es.torch.Optimizer(layer) if gathers else None
    offsets = torch.empty(3, dtype=torch.int64, device="meta")
    for _ in range(2):
        (
            layer(step.ids()).sum()
            + bag(step.ids(), offsets).sum()
            + bag(step.ids().view(2, 3)).sum()
            + collection(jagged(step)).values().sum()
            + sequences(jagged(step))["b"].to_padded_dense(4).sum()
        ).backward()
        if optimizer is not None:
            assert gradient_of(layer.rows).shape == (28, DIM)
            for _ in range(2):
                torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
                torch.nn.utils.clip_grad_value_(layer.parameters(), 1.0)
            scaler = scaler_on_gpu()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            optimizer.zero_grad()
    assert len(step.applied) == 2
    for conditions in step.applied:
        # If gathered gradients were changed in place, the device finds out whether they are zeros
        # now.
        assert (conditions.keep_mask is None) == (padding_idx is None and not gathers)
        assert conditions.refusal is not None
        assert (conditions.skip is None) == (not gathers)
    with torch.no_grad():
        bag(step.ids(), offsets)


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("shape", [(6,), (BAGS, 2), (BAGS, 0)])
def test_a_step_of_bags_needs_no_gradient_for_each_id(
    var: es.EmbeddingVariable,
    step: Step,
    padding_idx: int | None,
    gathers: bool,
    mode: str,
    shape: tuple[int, ...],
) -> None:
    bag = es.torch.EmbeddingBag(var, mode, padding_idx=padding_idx)
    optimizer = es.torch.Optimizer(bag) if gathers else None
    ids = torch.empty(shape, dtype=torch.int64, device="meta")
    offsets = torch.empty(BAGS, dtype=torch.int64, device="meta") if len(shape) == 1 else None
    floats = 0

    class Floats(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), of: Any = None) -> Any:
            nonlocal floats
            del types
            out = func(*args, **(of or {}))
            if isinstance(out, torch.Tensor) and out.is_floating_point():
                floats = max(floats, out.numel())
            return out

    bags = bag(ids, offsets)
    with Floats():  # type: ignore[no-untyped-call]
        bags.backward(torch.empty_like(bags))
        if optimizer is not None:
            optimizer.step()
    assert len(step.applied) == 1
    assert floats <= BAGS * DIM


def jagged(step: Step) -> es.torch.KeyedJaggedTensor:
    return es.torch.KeyedJaggedTensor(["a", "b"], step.ids(), step.ids(4), length_per_key=[2, 4])


def gradient_of(rows: es.torch.Rows) -> Any:
    assert rows.grad is not None
    return rows.grad


def scaler_on_gpu() -> Any:
    """Returns a GradScaler whose scale is on the fake GPU, for which none can be made."""
    scaler = torch.amp.GradScaler("cpu")
    scaler._scale = torch.ones((), device="meta")
    scaler._growth_tracker = torch.zeros((), dtype=torch.int32, device="meta")
    return scaler


def test_a_wait_is_noticed(step: Step) -> None:
    ids = step.ids()
    waits: list[Callable[[], Any]] = [
        lambda: ids[ids != 2],
        lambda: ids.masked_select(ids != 2),
        lambda: ids.__setitem__(ids != 2, 1),
        lambda: ids.nonzero(),
        lambda: ids.unique(),
        lambda: ids.repeat_interleave(ids),
        lambda: int(ids[0]),
        lambda: bool((ids < 0).any()),
        lambda: ids.cpu(),
        lambda: torch.zeros(6, dtype=torch.int64).to(ids.device),
        lambda: ids.copy_(torch.zeros(6, dtype=torch.int64)),
        lambda: ids.new_tensor([1]),
    ]
    noticed = (AssertionError, DataDependentOutputException, DynamicOutputShapeException)
    for wait in waits:
        with pytest.raises(noticed):
            wait()


# --- What a GPU does in place of waits, checked by its values on the CPU


def test_gradients_are_seen_without_those_of_padding(make_variable: MakeVariable) -> None:
    var = make_variable(
        dim=1, optimizer=es.optimizers.SGD(1.0), initializer=es.initializers.Zeros()
    )
    layers = [es.torch.Embedding(var, padding_idx=2), es.torch.Embedding(var)]
    optimizer = es.torch.Optimizer(var)
    ids = torch.tensor([[2, 5, 2, 5], [5, 2, 7, 2]])
    weights = torch.tensor([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0, 64.0, 128.0]])
    total = sum(
        (layer(row)[:, 0] * by).sum() for layer, row, by in zip(layers, ids, weights, strict=True)
    )
    total.backward()
    rows = layers[0].rows
    assert gradient_of(rows)[:, 0].tolist() == [0, 26, 0, 0, 0, 160, 64, 0]
    gradient_of(rows).mul_(0.5)
    optimizer.step()
    assert var.lookup([2, 5, 7])[:, 0].tolist() == [-80, -13, -32]
    assert var.get_frequency([2, 5, 7]).tolist() == [2, 3, 1]


@pytest.mark.parametrize("offsets", [[1], [0, 2, 1], [0, 3], [-1, 0], [0, -5, 2]])
@pytest.mark.parametrize("gathers", [False, True])
def test_wrong_offsets_make_bags_of_nan_and_train_nothing(
    var: es.EmbeddingVariable, monkeypatch: pytest.MonkeyPatch, offsets: list[int], gathers: bool
) -> None:
    monkeypatch.setattr("embstore.torch.modules.are_on_gpu_of_rows", lambda *_: True)
    bag = es.torch.EmbeddingBag(var)
    optimizer = es.torch.Optimizer(bag) if gathers else None
    good = bag(torch.tensor([1, 2]), torch.tensor([0, 1]))
    assert good.isfinite().all()
    bags = bag(torch.tensor([1, 2]), torch.tensor(offsets))
    assert bags.shape == (len(offsets), DIM)
    assert bags.isnan().all()

    def train() -> None:
        (bags.sum() + good.sum()).backward()
        if optimizer is not None:
            gradient_of(bag.rows).mul_(1)
            optimizer.step()

    with pytest.raises(InvalidArgumentError, match=r"var_0: offsets must start at 0 and ascend"):
        train()
    assert var.total_count() == (0, DIM)
