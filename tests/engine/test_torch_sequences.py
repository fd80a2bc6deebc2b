"""A collection looks up the rows of several features' sequences at once, as its modules do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable
from exports import assert_same

import embstore as es
from embstore import _core
from embstore.errors import InvalidArgumentError

torch = pytest.importorskip("torch")

DIMS = {"item": 4, "user": 3}
TABLES = {"clicked": "item", "bought": "item", "user": "user"}
LENGTHS = torch.tensor([2, 0, 4])
ON_GPU = es.StorageOption(
    es.StorageType.HBM_DRAM, storage_size=[64 * 4 * 8, 1 << 20], device=GPU
)  # 64 rows on the GPU


class Model:
    """The modules of three features over two tables; two of the features share a table."""

    def __init__(self, make_variable: MakeVariable, name: str, **options: Any) -> None:
        self.tables = {
            table: make_variable(name=f"{name}.{table}", dim=dim, **options)
            for table, dim in DIMS.items()
        }
        self.modules: dict[str, Any] = {
            feature: es.torch.Embedding(self.tables[table]) for feature, table in TABLES.items()
        }

    def collection(self) -> es.torch.EmbeddingCollection:
        return es.torch.EmbeddingCollection(self.modules)


def some_ids(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {feature: torch.from_numpy(random.integers(0, 9, 6)) for feature in TABLES}


def keyed(ids: dict[str, Any], **options: Any) -> es.torch.KeyedJaggedTensor:
    return es.torch.KeyedJaggedTensor(
        list(ids), torch.cat(list(ids.values())), LENGTHS.repeat(len(ids)), **options
    )


# How a program may give the ids, and the lengths of the sequences that they are.
FORMS: dict[str, tuple[Any, list[int]]] = {
    "a KeyedJaggedTensor": (keyed, [2, 0, 4]),
    "a KeyedJaggedTensor of known lengths": (
        lambda ids: keyed(ids, length_per_key=[6, 6, 6]),
        [2, 0, 4],
    ),
    "a KeyedJaggedTensor with weights": (lambda ids: keyed(ids, weights=torch.ones(18)), [2, 0, 4]),
    "JaggedTensors": (
        lambda ids: {
            name: es.torch.JaggedTensor(own, lengths=LENGTHS.int()) for name, own in ids.items()
        },
        [2, 0, 4],
    ),
    "ids and offsets": (
        lambda ids: {name: (own, torch.tensor([0, 2, 2])) for name, own in ids.items()},
        [2, 0, 4],
    ),
    "matrices": (lambda ids: {name: own.view(2, 3) for name, own in ids.items()}, [3, 3]),
    "vectors": (lambda ids: {name: own.int() for name, own in ids.items()}, [1] * 6),
}


@pytest.mark.parametrize("storage", [None, ON_GPU], ids=["DRAM", "HBM_DRAM"])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_collection_gives_and_trains_what_its_modules_do(
    make_variable: MakeVariable, form: str, gathers: bool, storage: es.StorageOption | None
) -> None:
    options = {} if storage is None else {"storage": storage}
    together = Model(make_variable, "together", **options)
    apart = Model(make_variable, "apart", **options)
    collection = together.collection()
    optimizers = []
    if gathers:
        modules = torch.nn.ModuleList(apart.modules.values())
        optimizers = [es.torch.Optimizer(collection), es.torch.Optimizer(modules)]
    given, lengths = FORMS[form]
    for step in range(4):
        ids = some_ids(step)
        found = collection(given(ids))
        expected = {name: module(ids[name]) for name, module in apart.modules.items()}
        assert list(found) == list(TABLES)
        for name, rows in expected.items():
            assert torch.equal(found[name].values(), rows)
            assert found[name].lengths().tolist() == lengths
            assert found[name].offsets().tolist() == [0, *np.cumsum(lengths)]
        for rows in (dict.values(expected), (jagged.values() for jagged in found.values())):
            sum(own.pow(2).sum() for own in rows).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for table in DIMS:
        assert_same(together.tables[table].export(), apart.tables[table].export())


def test_a_collection_makes_one_look_up_and_one_update_of_all_features(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    for name in ("look_up_each", "apply_each"):
        whole = getattr(_core, name)

        def counted(tables: Any, *arguments: Any, name: str = name, whole: Any = whole) -> Any:
            asked.append((name, len(tables)))
            return whole(tables, *arguments)

        monkeypatch.setattr(_core, name, counted)
    found = Model(make_variable, "of").collection()(keyed(some_ids(0)))
    sum(jagged.values().sum() for jagged in found.values()).backward()
    assert asked == [("look_up_each", 3), ("apply_each", 2)]


def test_a_keyed_jagged_tensor_has_the_methods_of_torchrecs() -> None:
    ids, weights = torch.arange(6), torch.rand(6)
    lengths, offsets = torch.tensor([2, 0, 1, 3]), torch.tensor([0, 2, 2, 3, 6])
    kind = es.torch.KeyedJaggedTensor
    for keyed in (
        kind.from_lengths_sync(["a", "b"], ids, lengths, weights),
        kind.from_offsets_sync(["a", "b"], ids, offsets, weights),
        kind(["a", "b"], ids, lengths, weights=weights).to("cpu"),
    ):
        assert keyed.stride() == 2
        assert keyed.length_per_key() == [2, 4]
        assert keyed.offset_per_key() == [0, 2, 6]
        assert keyed["b"].values().tolist() == [2, 3, 4, 5]
        assert keyed["b"].lengths().tolist() == [1, 3]
        assert torch.equal(keyed["b"].weights_or_none(), weights[2:])
    assert kind(["a", "b"], ids, lengths).to("meta").length_per_key() == [2, 4]
    with pytest.raises(InvalidArgumentError, match="offsets must start at 0 and ascend to 6"):
        kind.from_offsets_sync(["a", "b"], ids, offsets + 1)


@pytest.mark.parametrize("sequences", [0, 2])
def test_sequences_and_batches_may_be_empty(make_variable: MakeVariable, sequences: int) -> None:
    model = Model(make_variable, "of")
    ids, lengths = torch.empty(0, dtype=torch.int64), torch.zeros(sequences, dtype=torch.int64)
    found = model.collection()(es.torch.KeyedJaggedTensor(list(TABLES), ids, lengths.repeat(3)))
    for jagged in found.values():
        assert jagged.values().shape[0] == 0
        assert len(jagged.to_dense()) == sequences
        assert jagged.to_padded_dense().shape[:2] == (sequences, 0)
        assert jagged.to_padded_dense(3, 1.0).eq(1).all()
    sum(jagged.to_padded_dense(3).sum() for jagged in found.values()).backward()
    assert model.tables["item"].total_count()[0] == 0


def test_a_jagged_tensor_pads_and_cuts_as_torchrec_does() -> None:
    values = torch.arange(1.0, 9.0)
    jagged = es.torch.JaggedTensor(values, offsets=torch.IntTensor([0, 2, 2, 3, 4, 5, 8]))
    # The example in TorchRec's docstring of to_padded_dense.
    assert jagged.to_padded_dense(desired_length=2, padding_value=10.0).tolist() == [
        [1, 2],
        [10, 10],
        [3, 10],
        [4, 10],
        [5, 10],
        [6, 7],
    ]
    assert jagged.to_padded_dense().tolist()[4:] == [[5, 0, 0], [6, 7, 8]]
    assert [own.tolist() for own in jagged.to_dense()] == [[1, 2], [], [3], [4], [5], [6, 7, 8]]
    assert jagged.lengths().tolist() == [2, 0, 1, 1, 1, 3]
    assert jagged.weights_or_none() is None
    beside = es.torch.JaggedTensor(values, offsets=torch.tensor([2, 3, 5]))  # items in no sequence
    assert beside.to_padded_dense(2).tolist() == [[3, 0], [4, 5]]


def test_the_gradient_of_a_padded_tensor_is_that_of_its_items() -> None:
    values = torch.rand(6, 3, requires_grad=True)
    padded = es.torch.JaggedTensor(values, lengths=LENGTHS).to_padded_dense(3)
    assert torch.equal(padded[0, :2], values[:2])
    assert torch.equal(padded[2], values[2:5])
    weights = torch.rand(3, 3, 3)
    (padded * weights).sum().backward()
    assert torch.equal(values.grad[:2], weights[0, :2])
    assert torch.equal(values.grad[2:5], weights[2])
    assert values.grad[5].eq(0).all()  # cut off


def test_sequences_that_do_not_fit_are_refused_by_the_name_of_the_argument(
    make_variable: MakeVariable,
) -> None:
    collection = Model(make_variable, "of").collection()
    fitting = some_ids(0)
    ids, begins = fitting["user"], torch.tensor([0, 2])
    jagged = es.torch.JaggedTensor
    for wrong, message in (
        (ids.float(), "ids must be an int64 or int32 tensor, got torch.float32"),
        (ids.view(1, 2, 3), "ids must be 1-D or 2-D, got 3-D"),
        ((ids.view(2, 3), begins), "ids must be 1-D, got 2-D"),
        ((ids, begins + 1), "offsets must start at 0 and ascend to 6"),
        ((ids, torch.tensor([0, 7])), "offsets must start at 0 and ascend to 6"),
        ((ids, begins[:0]), "offsets must start at 0 and ascend to 6"),
        ((ids, begins.view(1, 2)), "offsets must be 1-D, got 2-D"),
        (jagged(ids, lengths=begins), "offsets must start at 0 and ascend to 6"),
        (jagged(ids, lengths=torch.tensor([7, -1])), "offsets must start at 0 and ascend to 6"),
        (jagged(ids.view(2, 3), lengths=begins), "ids must be 1-D, got 2-D"),
        ((), "must be ids, or a tuple of ids and offsets, got a tuple of 0"),
        ((ids, begins, ids), "must be ids, or a tuple of ids and offsets, got a tuple of 3"),
    ):
        with pytest.raises(InvalidArgumentError, match=rf"^features\['user'\].*{message}"):
            collection({**fitting, "user": wrong})
    with pytest.raises(InvalidArgumentError, match="features has no 'bought'"):
        collection({"clicked": ids})
    for lengths, message in (
        ({}, "lengths or offsets must be given"),
        ({"lengths": LENGTHS.float()}, "lengths must be an int64 or int32 tensor, got torch.float"),
        ({"offsets": [0, 6]}, "offsets must be an int64 or int32 tensor, got list"),
        ({"offsets": begins[:0]}, "offsets must have the number of ids at least"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            jagged(ids, **lengths)
    with pytest.raises(InvalidArgumentError, match="desired_length must be at least 0, got -1"):
        jagged(ids, lengths=LENGTHS).to_padded_dense(-1)


def test_a_collection_of_sequences_takes_only_embeddings(make_variable: MakeVariable) -> None:
    bag = es.torch.EmbeddingBag(make_variable(dim=3))
    wrong: Any
    for wrong, message in (
        ({}, r"embeddings must have an embstore\.torch\.Embedding, got none"),
        ([bag], r"embeddings must be a dict with .*\.Embedding for .*, got list"),
        ({"a": bag}, r"embeddings\['a'\] must be an .*\.Embedding, got EmbeddingBag"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            es.torch.EmbeddingCollection(wrong)


@pytest.mark.parametrize("collects", ["bags", "rows"])
def test_torch_compile_breaks_the_graph_once_for_all_features(
    make_variable: MakeVariable, collects: str
) -> None:
    model = Model(make_variable, "of")
    rows: Any = model.collection()
    bags: Any = es.torch.EmbeddingBagCollection(
        {name: es.torch.EmbeddingBag(model.tables[table]) for name, table in TABLES.items()}
    )

    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    def summed(features: Any) -> Any:
        found = rows(features).values() if collects == "rows" else [bags(features)]
        return sum(own.values().sum() for own in found)

    compiled = torch.compile(summed, backend=backend)
    features = keyed(some_ids(0))
    assert torch.equal(compiled(features), summed(features))
    assert len(graphs) == 1  # the sum
