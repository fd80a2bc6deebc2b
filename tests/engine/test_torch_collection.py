"""A collection looks up the bags of several features at once, and gives what its modules give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable

import embstore as es
from embstore import _core
from embstore.errors import InvalidArgumentError

torch = pytest.importorskip("torch")

DIMS = {"user": 3, "item": 4}
COMBINERS = {"clicked": "sum", "bought": "mean", "user": "sqrtn"}
TABLES = {"clicked": "item", "bought": "item", "user": "user"}
OFFSETS = torch.tensor([0, 2, 2])


class Model:
    """The modules of three features over two tables; two of the features share a table."""

    def __init__(self, make_variable: MakeVariable, name: str) -> None:
        self.tables = {
            table: make_variable(name=f"{name}.{table}", dim=dim) for table, dim in DIMS.items()
        }
        self.bags = {
            feature: es.torch.EmbeddingBag(self.tables[table], COMBINERS[feature])
            for feature, table in TABLES.items()
        }

    def rows(self) -> dict[str, Any]:
        return {table: variable.export() for table, variable in self.tables.items()}


def some_ids(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {feature: torch.from_numpy(random.integers(0, 9, 6)) for feature in TABLES}


def jagged(ids: dict[str, Any], **options: Any) -> es.torch.KeyedJaggedTensor:
    lengths = torch.tensor([2, 0, 4] * len(ids))
    return es.torch.KeyedJaggedTensor(list(ids), torch.cat(list(ids.values())), lengths, **options)


def as_features(ids: dict[str, Any], kind: str) -> Any:
    if kind == "dict":
        return {feature: (own, OFFSETS) for feature, own in ids.items()}
    return jagged(ids) if kind == "jagged" else jagged(ids, length_per_key=[6, 6, 6])


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("kind", ["dict", "jagged", "jagged, of known lengths"])
def test_a_collection_gives_and_trains_what_its_modules_do(
    make_variable: MakeVariable, kind: str, gathers: bool
) -> None:
    together, apart = Model(make_variable, "together"), Model(make_variable, "apart")
    collection = es.torch.EmbeddingBagCollection(together.bags)
    optimizers = []
    if gathers:
        modules = torch.nn.ModuleList(apart.bags.values())
        optimizers = [es.torch.Optimizer(collection), es.torch.Optimizer(modules)]
    for step in range(4):
        ids = some_ids(step)
        found = collection(as_features(ids, kind))
        expected = {feature: bag(ids[feature], OFFSETS) for feature, bag in apart.bags.items()}
        assert found.keys() == list(TABLES)
        assert found.length_per_key() == [4, 4, 3]
        assert found.offset_per_key() == [0, 4, 8, 11]
        assert torch.equal(found.values(), torch.cat(list(expected.values()), dim=1))
        for feature, bags in expected.items():
            assert torch.equal(found[feature], bags)
            assert torch.equal(found.to_dict()[feature], bags)
        found.values().pow(2).sum().backward()
        sum(bags.pow(2).sum() for bags in expected.values()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    rows, wanted = together.rows(), apart.rows()
    for table in DIMS:
        for column in wanted[table]:
            np.testing.assert_array_equal(rows[table][column], wanted[table][column])


@pytest.mark.parametrize("kind", ["jagged", "one id each"])
def test_a_collection_makes_one_look_up_of_all_features(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked: list[int] = []
    look_up_each = _core.look_up_each

    def counted(tables: Any, *arguments: Any) -> Any:
        asked.append(len(tables))
        return look_up_each(tables, *arguments)

    monkeypatch.setattr(_core, "look_up_each", counted)
    collection = es.torch.EmbeddingBagCollection(Model(make_variable, "of").bags)
    ids = some_ids(0)
    one_each = {feature: own.unsqueeze(1) for feature, own in ids.items()}
    collection(one_each if kind == "one id each" else as_features(ids, kind))
    assert asked == [3]


def test_a_feature_that_the_loss_does_not_use_is_not_trained(make_variable: MakeVariable) -> None:
    model = Model(make_variable, "of")
    collection = es.torch.EmbeddingBagCollection(model.bags)
    found = collection(as_features(some_ids(0), "dict"))
    found["user"].sum().backward()
    assert model.tables["item"].total_count()[0] == 0
    assert model.tables["user"].total_count()[0] > 0


def test_a_frozen_table_is_read_and_not_trained(make_variable: MakeVariable) -> None:
    model = Model(make_variable, "of")
    collection = es.torch.EmbeddingBagCollection(model.bags)
    model.bags["user"].rows.requires_grad_(False)
    ids = some_ids(0)
    found = collection(as_features(ids, "dict"))
    assert torch.equal(found["user"], model.bags["user"](ids["user"], OFFSETS))
    found.values().sum().backward()
    assert model.tables["user"].total_count()[0] == 0
    assert model.tables["item"].total_count()[0] > 0


@pytest.mark.parametrize("serves", [None, "module", "collection"])
def test_an_evaluation_moves_no_row_and_a_model_that_serves_does(
    make_variable: MakeVariable, serves: str | None
) -> None:
    storage = es.StorageOption(es.StorageType.HBM_DRAM, storage_size=[32, 1 << 20], device=GPU)
    table = make_variable(dim=3, storage=storage)  # HBM has one row
    bag = es.torch.EmbeddingBag(table)
    table.apply_gradients([1, 1, 2], np.ones((3, 3), np.float32))
    table.drain()
    assert table.lookup_tier([1, 2]).tolist() == [0, 1]
    collection = es.torch.EmbeddingBagCollection({"a": bag, "b": bag}).eval()
    if serves is not None:
        (bag if serves == "module" else collection).serves = True
    assert collection.serves == bag.serves == (serves is not None)
    collection({"a": torch.tensor([[2, 2]]), "b": torch.tensor([[2, 2]])})
    table.drain()
    assert table.lookup_tier([1, 2]).tolist() == ([1, 0] if serves else [0, 1])


def test_features_that_the_collection_does_not_have_are_left_out(
    make_variable: MakeVariable,
) -> None:
    model = Model(make_variable, "of")
    collection = es.torch.EmbeddingBagCollection({"user": model.bags["user"]})
    ids = some_ids(0)
    found = collection(jagged(ids))
    assert found.keys() == ["user"]
    assert torch.equal(found["user"], model.bags["user"](ids["user"], OFFSETS))


def test_bags_with_include_last_offset_are_taken_like_others(make_variable: MakeVariable) -> None:
    var = make_variable(dim=3)
    found = [
        es.torch.EmbeddingBagCollection(
            {"of": es.torch.EmbeddingBag(var, "sum", include_last_offset=has_end)}
        )(es.torch.KeyedJaggedTensor(["of"], torch.tensor([1, 2, 3]), torch.tensor(lengths)))
        for has_end in (False, True)
        for lengths in ([1, 2, 0], [1, 1, 1])
    ]
    for without, with_end in zip(found[:2], found[2:], strict=True):
        assert torch.equal(without.values(), with_end.values())
        assert with_end.values().shape == (3, 3)


def test_every_row_of_a_matrix_is_a_bag(make_variable: MakeVariable) -> None:
    model = Model(make_variable, "of")
    collection = es.torch.EmbeddingBagCollection(model.bags)
    ids = {feature: own.view(2, 3) for feature, own in some_ids(0).items()}
    found = collection(ids)
    for feature, bag in model.bags.items():
        assert torch.equal(found[feature], bag(ids[feature]))


def test_bags_that_do_not_fit_are_refused_by_the_name_of_the_feature(
    make_variable: MakeVariable,
) -> None:
    collection = es.torch.EmbeddingBagCollection(Model(make_variable, "of").bags)
    fitting = as_features(some_ids(0), "dict")
    ids = fitting["user"][0]
    for wrong, message in (
        ({"clicked": (ids, OFFSETS)}, "features has no 'bought', which the collection has"),
        ({**fitting, "user": ids}, r"features\['user'\]: offsets must say where each bag starts"),
        ({**fitting, "user": [1]}, r"features\['user'\]: ids must be an int64 or int32 tensor"),
        ({**fitting, "user": (ids, OFFSETS[:2])}, "'clicked' has 3, 'user' has 2"),
        ({**fitting, "user": ()}, r"features\['user'\] must be ids, .*, got a tuple of 0"),
        ({**fitting, "user": (ids,) * 4}, r"features\['user'\] must be ids, .*, got a tuple of 4"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            collection(wrong)
    lengths = torch.tensor([1, 1])
    for arguments, message in (
        ((["a"], torch.tensor([1.0, 2.0]), lengths), "values must be an int64 or int32 tensor"),
        ((["a"], torch.tensor([[1, 2]]), lengths), "values must be 1-D, got 2-D"),
        ((["a", "b", "c"], torch.tensor([1, 2]), lengths), "for each bag of each of 3 keys, got 2"),
        (([], torch.tensor([1, 2]), lengths), r"keys must be a list .*, got \[\]"),
        ((["a", "b"], torch.tensor([1, 2]), torch.tensor([-1, 3])), "lengths must be .*, got -1"),
        ((["a"], torch.tensor([1, 2, 3]), lengths), r"how many of 3 ids each of 1 keys .*\[2\]"),
        ((["a"], torch.tensor([1, 2]), lengths, [1]), r"how many of 2 ids each of 1 keys .*\[1\]"),
        ((["a", "b"], torch.tensor([1, 2]), lengths, [2, 0]), r"each of 2 keys has, got \[2, 0\]"),
        ((["a", "a"], torch.tensor([1, 2]), lengths), "keys must differ, got 'a' more than once"),
        ((5, torch.tensor([1, 2]), lengths), "keys must be a list of features' names, got 5"),
        (("ab", torch.tensor([1, 2]), lengths), "keys must be a list .*, got 'ab'"),
        (([[]], torch.tensor([1, 2]), lengths), r"keys must be a list .*, got \[\[\]\]"),
        ((["a"], torch.tensor([1, 2]), lengths, 5), "length_per_key must be a list .*, got 5"),
        ((["a"], torch.tensor([1, 2]), lengths, [2.0]), r"an integer for each .*, got \[2\.0\]"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            es.torch.KeyedJaggedTensor(*arguments)


@pytest.mark.parametrize("kind", ["dict", "jagged"])
def test_ids_may_have_weights(make_variable: MakeVariable, kind: str) -> None:
    ids, random = some_ids(0), torch.Generator().manual_seed(1)
    weights = {name: torch.rand(6, generator=random, requires_grad=True) for name in ids}
    tables = [
        {table: make_variable(name=f"{n}.{table}", dim=dim) for table, dim in DIMS.items()}
        for n in range(2)
    ]
    together, apart = (
        {name: es.torch.EmbeddingBag(of[table], "sum") for name, table in TABLES.items()}
        for of in tables
    )
    if kind == "dict":
        features: Any = {name: (ids[name], OFFSETS, weights[name]) for name in ids}
    else:
        features = jagged(ids, weights=torch.cat(list(weights.values())))
    got = es.torch.EmbeddingBagCollection(together)(features)
    found = {name: apart[name](ids[name], OFFSETS, weights[name]) for name in ids}
    for name, bags in found.items():
        np.testing.assert_array_equal(got[name].detach(), bags.detach())
    by_together = torch.autograd.grad(
        got.values().square().sum(), list(weights.values()), retain_graph=True
    )
    by_apart = torch.autograd.grad(
        sum(bags.square().sum() for bags in found.values()), list(weights.values())
    )
    for one, other in zip(by_together, by_apart, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_that_do_not_fit_are_refused(make_variable: MakeVariable) -> None:
    collection = es.torch.EmbeddingBagCollection(Model(make_variable, "of").bags)
    with pytest.raises(
        InvalidArgumentError, match=r"\['bought'\]: per_sample_weights must be None"
    ):
        collection(jagged(some_ids(0), weights=torch.ones(18)))
    for weights, message in (
        (torch.ones(17), r"weights must have the shape of values, \(18,\), got \(17,\)"),
        (torch.ones(18, dtype=torch.int64), "weights must be a tensor of floats"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            jagged(some_ids(0), weights=weights)


def test_a_collection_takes_only_bags(make_variable: MakeVariable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"bags must have .*, got none"):
        es.torch.EmbeddingBagCollection({})
    listed: Any = [es.torch.EmbeddingBag(make_variable(dim=3))]
    with pytest.raises(InvalidArgumentError, match=r"bags must be a dict with .*, got list"):
        es.torch.EmbeddingBagCollection(listed)
    layer: Any = es.torch.Embedding(make_variable(dim=3))
    with pytest.raises(InvalidArgumentError, match=r"bags\['a'\] must be .*EmbeddingBag, got Emb"):
        es.torch.EmbeddingBagCollection({"a": layer})


def test_features_must_have_names(make_variable: MakeVariable) -> None:
    collection = es.torch.EmbeddingBagCollection(Model(make_variable, "of").bags)
    for nameless in (torch.tensor([1]), [torch.tensor([[1]])]):
        with pytest.raises(InvalidArgumentError, match=r"features must be a dict with .*, got "):
            collection(nameless)


def test_features_of_torchrec_that_come_twice_are_refused(make_variable: MakeVariable) -> None:
    class Theirs:
        """A KeyedJaggedTensor of TorchRec, which takes a key twice."""

        def __init__(self) -> None:
            self.keys = lambda: ["a", "a"]
            self.to_dict = dict

    collection = es.torch.EmbeddingBagCollection({"a": es.torch.EmbeddingBag(make_variable(dim=3))})
    with pytest.raises(InvalidArgumentError, match="keys must differ, got 'a' more than once"):
        collection(Theirs())
