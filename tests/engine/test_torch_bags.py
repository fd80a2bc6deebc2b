"""Arguments of `es.torch.EmbeddingBag` beside the bags, which act as in `torch.nn.EmbeddingBag`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable
from exports import assert_same

import embstore as es
from embstore.errors import InvalidArgumentError
from embstore.gpu.batches import BatchConditions
from embstore.gpu.steps import ApplyStep, apply_together

torch = pytest.importorskip("torch")

from embstore.torch import rows  # noqa: E402
from embstore.torch.bags import Bags  # noqa: E402

KEYS, DIM = 20, 5


@pytest.fixture
def table() -> Any:
    return torch.randn(KEYS, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def var(table: Any) -> Iterator[es.EmbeddingVariable]:
    with es.get_embedding_variable("items", DIM, optimizer=es.optimizers.SGD(0.1)) as made:
        made.put(np.arange(KEYS), table.numpy())
        yield made


@pytest.mark.parametrize("two_dim", [False, True])
def test_weights_of_ids_are_those_of_torch(
    var: es.EmbeddingVariable, table: Any, two_dim: bool
) -> None:
    ids = torch.tensor([[1, 2, 1], [3, 1, 7]])
    weights = torch.tensor([[0.5, 2.0, -1.0], [0.0, 1.0, 3.0]], requires_grad=True)
    theirs = weights.detach().clone().requires_grad_()
    their_table = table.clone().requires_grad_()
    wanted = torch.nn.functional.embedding_bag(
        ids, their_table, mode="sum", per_sample_weights=theirs
    )
    layer = es.torch.EmbeddingBag(var, mode="sum")
    if two_dim:
        bags = layer(ids, per_sample_weights=weights)
    else:
        bags = layer(ids.reshape(-1), torch.tensor([0, 3]), weights.reshape(-1))
    torch.testing.assert_close(bags, wanted)
    upstream = torch.randn(2, DIM)
    bags.backward(upstream)
    wanted.backward(upstream)
    torch.testing.assert_close(weights.grad, theirs.grad)
    trained = torch.from_numpy(var.lookup(np.arange(KEYS)))
    torch.testing.assert_close(trained, table - 0.1 * their_table.grad)


def test_a_last_offset_is_the_number_of_ids(var: es.EmbeddingVariable, table: Any) -> None:
    layer = es.torch.EmbeddingBag(var, "sum", include_last_offset=True)
    ids, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 1, 4])
    wanted = torch.nn.functional.embedding_bag(
        ids, table, offsets, mode="sum", include_last_offset=True
    )
    torch.testing.assert_close(layer(ids, offsets), wanted)
    for wrong in ([0, 1, 3], [0, 1, 5], [1, 4], [], [4]):
        with pytest.raises(InvalidArgumentError, match="offsets"):
            layer(ids, torch.tensor(wrong, dtype=torch.int64))
    assert layer(ids[:0], offsets[:1]).shape == (0, DIM)


def test_a_collection_takes_a_last_offset_too(var: es.EmbeddingVariable, table: Any) -> None:
    bag = es.torch.EmbeddingBag(var, "sum", include_last_offset=True)
    collection = es.torch.EmbeddingBagCollection({"items": bag})
    ids, offsets = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3])
    found = collection({"items": (ids, offsets)})["items"]
    torch.testing.assert_close(found, torch.stack([table[1], table[2] + table[3]]))


def test_impossible_weights_are_refused(var: es.EmbeddingVariable) -> None:
    ids = torch.tensor([[1, 2]])
    with pytest.raises(InvalidArgumentError, match='mode="sum" takes them'):
        es.torch.EmbeddingBag(var, "mean")(ids, per_sample_weights=torch.ones(1, 2))
    layer = es.torch.EmbeddingBag(var, "sum")
    for weights in (torch.ones(2), torch.ones(1, 2).long(), [[1.0, 1.0]]):
        with pytest.raises(InvalidArgumentError, match="per_sample_weights must"):
            layer(ids, per_sample_weights=weights)


@pytest.mark.parametrize(
    ("mode", "weights"), [("sum", None), ("mean", None), ("sum", [1.0, 2.0, 3.0, 4.0])]
)
def test_offsets_may_be_overwritten_before_backward(
    var: es.EmbeddingVariable, table: Any, mode: str, weights: list[float] | None
) -> None:
    ids, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 3])
    weighted_by = None if weights is None else torch.tensor(weights)
    their_table = table.clone().requires_grad_()
    wanted = torch.nn.functional.embedding_bag(
        ids.clone(), their_table, offsets.clone(), mode=mode, per_sample_weights=weighted_by
    )
    bags = es.torch.EmbeddingBag(var, mode)(ids, offsets, weighted_by)
    ids.zero_()
    offsets[1] = 1
    upstream = torch.arange(2.0 * DIM).view(2, DIM)
    bags.backward(upstream)
    wanted.backward(upstream)
    trained = torch.from_numpy(var.lookup(np.arange(KEYS)))
    torch.testing.assert_close(trained, table - 0.1 * their_table.grad)


def ordered_sums(rows: Any, ids: list[list[int]], mode: str, padding: int | None) -> Any:
    """Returns the sum of each bag, one row added after the other."""
    sums = np.zeros((len(ids), rows.shape[1]), np.float32)
    for bag, own in zip(sums, ids, strict=True):
        kept = [id_ for id_ in own if id_ != padding]
        for id_ in kept:
            bag += rows[id_]
        divisor = {"sum": 1, "mean": max(len(kept), 1), "sqrtn": max(len(kept), 1) ** 0.5}[mode]
        bag /= np.float32(divisor)
    return sums


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("train", [True, False])
def test_rows_of_a_bag_are_added_in_their_order(partitions: int, train: bool) -> None:
    random = np.random.default_rng(3)
    for dim in (1, 5, 16, 19, 33):
        rows = random.standard_normal((KEYS, dim)).astype(np.float32)
        with es.get_embedding_variable(f"of_{dim}", dim, partition_num=partitions) as of_dim:
            of_dim.put(np.arange(KEYS), rows)
            for mode in ("sum", "mean", "sqrtn"):
                for padding in (None, 3):
                    layer = es.torch.EmbeddingBag(of_dim, mode, padding_idx=padding).train(train)
                    lengths = [0, 1, 6, 0, 9, 1, 0]
                    bags = [random.integers(0, KEYS, n).tolist() for n in lengths]
                    ids = torch.tensor([id_ for bag in bags for id_ in bag])
                    offsets = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
                    strided = torch.stack([offsets, offsets], dim=1)[:, 0]
                    wanted = ordered_sums(rows, bags, mode, padding)
                    np.testing.assert_array_equal(layer(ids, offsets).detach(), wanted)
                    np.testing.assert_array_equal(layer(ids.int(), strided).detach(), wanted)
                    for length in (0, 1, 4):
                        square = random.integers(0, KEYS, (5, length))
                        wanted = ordered_sums(rows, square.tolist(), mode, padding)
                        found = layer(torch.from_numpy(square)).detach()
                        np.testing.assert_array_equal(found, wanted)
                        transposed = torch.from_numpy(square.T.copy()).T
                        np.testing.assert_array_equal(layer(transposed).detach(), wanted)


def apply_on_emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has tensors on the CPU trained as tensors on the emulated GPU, which PyTorch can't use."""

    def on_gpu(tensor: Any) -> Any:
        return None if tensor is None else es.DeviceArray(tensor.detach().numpy(), device=GPU)

    def step_of(
        variable: es.EmbeddingVariable, ids: Any, grads: Any, conditions: BatchConditions, bags: Any
    ) -> ApplyStep:
        conditions = dataclasses.replace(conditions, keep_mask=on_gpu(conditions.keep_mask))
        return ApplyStep.of(variable, on_gpu(ids), on_gpu(grads), conditions, on_gpu(bags))

    def apply_all(updates: Any, global_step: int | None = None, skip: Any = None) -> None:
        steps = [rows._step_on_gpu(variable, part, skip) for variable, part in updates]
        apply_together(steps, global_step)

    monkeypatch.setattr(rows, "ApplyStep", SimpleNamespace(of=step_of))
    for module in ("lookup", "optimizer"):
        monkeypatch.setattr(f"embstore.torch.{module}.apply_all", apply_all)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_bags_train_rows_as_one_gradient_for_each_id_would(
    monkeypatch: pytest.MonkeyPatch,
    make_variable: MakeVariable,
    partitions: int,
    gathers: bool,
    on_gpu: bool,
) -> None:
    random = np.random.default_rng(4)
    values = random.standard_normal((KEYS, DIM)).astype(np.float32)
    storage = None
    if on_gpu:
        apply_on_emulated_gpu(monkeypatch)
        # HBM has room for some of the rows.
        storage = es.StorageOption(es.StorageType.HBM_DRAM, storage_size=[64 * 5, 1 << 20])

    by_bags, by_ids = (
        make_variable(dim=DIM, partition_num=partitions, storage=of) for of in (storage, None)
    )
    for variable in (by_bags, by_ids):
        variable.put(np.arange(KEYS), values)
    optimizer = es.torch.Optimizer(by_bags) if gathers else None
    for mode in ("sum", "mean", "sqrtn"):
        for padding in (None, 3):
            layer = es.torch.EmbeddingBag(by_bags, mode, padding_idx=padding)
            # The last batch is large enough for several threads.
            for lengths in ([0, 1, 6, 0, 9, 1, 0], [4, 4, 4], [1] * 5, [3000] * 3):
                ids = random.integers(0, KEYS, sum(lengths))
                upstream = random.standard_normal((len(lengths), DIM)).astype(np.float32)
                begins = np.cumsum([0, *lengths[:-1]])
                if len(set(lengths)) == 1:
                    bags = layer(torch.from_numpy(ids.reshape(len(lengths), -1)))
                else:
                    bags = layer(torch.from_numpy(ids), torch.from_numpy(begins))
                bags.backward(torch.from_numpy(upstream))
                if optimizer is not None:
                    optimizer.step()
                    optimizer.zero_grad()
                own = [part[part != padding] for part in np.split(ids, begins[1:])]
                counts = torch.tensor([len(part) for part in own])
                divisors = counts.clamp(min=1).float()
                divisors = {"sum": divisors**0, "mean": divisors, "sqrtn": divisors.sqrt()}[mode]
                of_sums = upstream / divisors.numpy()[:, None]
                by_ids.apply_gradients(np.concatenate(own), of_sums.repeat(counts.numpy(), axis=0))
                by_bags.drain()
                assert_same(by_bags.export(), by_ids.export())


def test_two_layers_train_the_bags_of_both(var: es.EmbeddingVariable, table: Any) -> None:
    theirs = table.clone().requires_grad_()
    first, second = torch.tensor([[1, 2], [2, 3]]), torch.tensor([2, 5, 7])
    offsets = torch.tensor([0, 1])
    ours = es.torch.EmbeddingBag(var, "sum")(first), es.torch.EmbeddingBag(var)(second, offsets)
    wanted = (
        torch.nn.functional.embedding_bag(first, theirs, mode="sum"),
        torch.nn.functional.embedding_bag(second, theirs, offsets, mode="mean"),
    )
    for bags in (ours, wanted):
        ((bags[0] * 3).sum() + (bags[1] ** 2).sum()).backward()
    trained = torch.from_numpy(var.lookup(np.arange(KEYS)))
    torch.testing.assert_close(trained, table - 0.1 * theirs.grad)


def test_a_gradient_of_a_bag_that_is_not_finite_names_its_first_id(
    var: es.EmbeddingVariable, table: Any
) -> None:
    ids, offsets = torch.tensor([4, 5, 6, 7]), torch.tensor([0, 1, 1, 2])
    for padding, first in ((None, r"ids\[2\], key 6"), (6, r"ids\[3\], key 7")):
        layer = es.torch.EmbeddingBag(var, "sum", padding_idx=padding)
        upstream = torch.zeros(4, DIM)
        upstream[1] = torch.inf  # an empty bag's gradient trains no row
        layer(ids, offsets).backward(upstream)
        upstream[3, 2] = torch.nan
        with pytest.raises(InvalidArgumentError, match=first + ", has nan in column 2"):
            layer(ids, offsets).backward(upstream)
    torch.testing.assert_close(torch.from_numpy(var.lookup(np.arange(KEYS))), table)


def test_bags_that_a_gpu_refuses_are_nan() -> None:
    rows, offsets = torch.ones(3, DIM), torch.tensor([0, 2])
    for refused in (0, 1):
        bags = Bags("sum", offsets, refusal=torch.tensor([refused])).combine(torch.arange(3), rows)
        assert bool(bags.isnan().all()) == (refused == 1)
        assert bool(bags.isnan().any()) == (refused == 1)


def test_embedding_dim_is_named_as_in_torch(var: es.EmbeddingVariable) -> None:
    assert es.torch.EmbeddingBag(var).embedding_dim == DIM
    assert es.torch.Embedding(var).embedding_dim == DIM
