"""Calls on several variables: each gets what it would get alone, on the host and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import GPU, MakeVariable, Stack, StorageOf
from exports import assert_same
from numpy.typing import NDArray

import embstore as es
from embstore.errors import ClosedError, DamagedRowsError, InvalidArgumentError, StoreFullError
from embstore.gpu.steps import ApplyStep, apply_together
from embstore.options import TIER_KINDS, TierKind
from embstore.table.shard import LocalShard, SaveRequest

HBM_TYPES = [kind for kind, tiers in TIER_KINDS.items() if TierKind.HBM in tiers]
OPTIMIZERS = [es.optimizers.Adagrad(0.1), es.optimizers.Adam(0.1), es.optimizers.SGD(0.1)]
DIMS = [3, 8, 5, 16]

Ids = NDArray[np.int64]
Place = Callable[[Any], Any]


def on_device(values: NDArray[Any]) -> es.DeviceArray:
    return es.DeviceArray(values, device=GPU)


def on_host(values: NDArray[Any]) -> NDArray[Any]:
    return values


@pytest.fixture(params=[on_host, on_device], ids=["host", "device"])
def place(request: pytest.FixtureRequest) -> Place:
    """Returns the function that puts ids and gradients on the host or on the device."""
    chosen: Place = request.param
    return chosen


def rows_of(rows: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = rows.numpy() if isinstance(rows, es.DeviceArray) else rows
    return found


def some_batches(seed: int, dims: list[int]) -> list[tuple[Ids, NDArray[np.float32]]]:
    random = np.random.default_rng(seed)
    batches = []
    for dim in dims:
        ids = np.minimum(*random.integers(0, 200, (2, random.integers(0, 50))))
        batches.append((ids, random.standard_normal((ids.size, dim)).astype(np.float32)))
    return batches


def hbm(rows: int = 40) -> es.StorageOption:
    return es.StorageOption(es.StorageType.HBM_DRAM, storage_size=[rows * 32, 1 << 20])


@pytest.mark.parametrize("kind", HBM_TYPES, ids=lambda kind: kind.name)
def test_each_variable_gets_the_rows_that_it_gets_alone(
    make_variable: MakeVariable, storage_of: StorageOf, kind: es.StorageType, place: Place
) -> None:
    made: list[dict[str, Any]] = [
        {"dim": dim, "optimizer": OPTIMIZERS[i % 3], "partition_num": 1 + i % 2}
        for i, dim in enumerate(DIMS)
    ]
    many = [
        make_variable(storage=storage_of(Stack(kind), 1 << 17, upper_bytes=1 << 12), **of)
        for of in made
    ]
    alone = [make_variable(**of) for of in made]
    for seed in range(12):
        batches = some_batches(seed, DIMS)
        ids = [place(own) for own, _ in batches]
        found = es.lookup_many(many, ids, train=seed % 3 != 0)
        for variable, rows, (own, _) in zip(alone, found, batches, strict=True):
            assert isinstance(rows, es.DeviceArray) == (place is on_device)
            np.testing.assert_array_equal(rows_of(rows), variable.lookup(own, train=True))
        es.apply_many(many, ids, [place(grads) for _, grads in batches])
        for variable, (own, grads) in zip(alone, batches, strict=True):
            variable.apply_gradients(own, grads)
        if seed % 4 == 3:
            many[seed % 3].drain()
    for one, other in zip(many, alone, strict=True):
        one.synchronize()
        assert_same(one.export(), other.export())


@pytest.mark.parametrize("dims", [[4, 4, 4, 4, 4, 4], [4, 4, 4, 8, 4, 4]], ids=str)
@pytest.mark.parametrize("listed", [[2, 7], None], ids=["a list and a number among them", "arrays"])
def test_rows_have_the_shape_of_their_ids_which_are_of_any_kind(
    make_variable: MakeVariable, dims: list[int], listed: list[int] | None
) -> None:
    ids: list[Any] = [
        np.arange(12).reshape(2, 3, 2),
        np.arange(40, dtype=np.int16)[::3],
        np.array(9) if listed is None else 9,
        np.arange(5).astype(">i8"),
        np.arange(24).reshape(4, 6).T,
        np.arange(0) if listed is None else listed,
    ]
    many = [make_variable(dim=dim, partition_num=1 + i % 2) for i, dim in enumerate(dims)]
    for variable in many:
        variable.apply_gradients(np.arange(0, 50, 2), np.ones((25, variable.dim), np.float32))
    for _ in range(2):
        found = es.lookup_many(many, ids)
        for variable, own, rows in zip(many, ids, found, strict=True):
            assert rows.shape == (*np.shape(own), variable.dim)
            np.testing.assert_array_equal(rows, variable.lookup(own))
        es.apply_many(many, ids, [np.ones_like(rows) for rows in found])
    for variable, own in zip(many, ids, strict=True):
        trained = np.union1d(np.arange(0, 50, 2), own)
        assert variable.export()["keys"].tolist() == trained.tolist()
    for wrong in (np.ones(2), np.ones(2, np.uint64), np.array(["a"])):
        with pytest.raises(InvalidArgumentError, match=f"{many[3].name}.*ids must be int64"):
            es.lookup_many(many, [*ids[:3], wrong, *ids[4:]])


def test_ids_may_be_on_the_host_and_on_the_device_in_one_call(make_variable: MakeVariable) -> None:
    many = [make_variable(storage=hbm()), make_variable(), make_variable(storage=hbm())]
    alone = [make_variable() for _ in many]
    for seed in range(5):
        batches = some_batches(seed, [3, 3, 3])
        places = [on_device, on_host, on_device if seed % 2 else on_host]
        ids = [place(own) for place, (own, _) in zip(places, batches, strict=True)]
        es.apply_many(
            many,
            ids,
            [place(grads) for place, (_, grads) in zip(places, batches, strict=True)],
            global_step=seed,
        )
        for variable, (own, grads) in zip(alone, batches, strict=True):
            variable.apply_gradients(own, grads, seed)
        for variable, rows, (own, _) in zip(
            alone, es.lookup_many(many, ids, train=True), batches, strict=True
        ):
            np.testing.assert_array_equal(rows_of(rows), variable.lookup(own, train=True))
    for one, other in zip(many, alone, strict=True):
        assert_same(one.export(), other.export())


def test_a_variable_may_be_looked_up_twice_but_not_trained(
    make_variable: MakeVariable, place: Place
) -> None:
    var = make_variable(name="items", storage=hbm())
    ids = [place(np.arange(5)), place(np.arange(3, 9))]
    one, other = es.lookup_many([var, var], ids)
    assert rows_of(one).shape == (5, 3)
    assert rows_of(other).shape == (6, 3)
    grads = [place(np.ones((5, 3), np.float32)), place(np.ones((6, 3), np.float32))]
    with pytest.raises(InvalidArgumentError, match="items is there 2 times; join its batches"):
        es.apply_many([var, var], ids, grads)
    assert var.total_count() == (0, 3)


def test_a_call_without_variables_does_nothing() -> None:
    assert es.lookup_many([], []) == []
    es.apply_many([], [], [])


# --- Errors


def test_a_batch_without_room_stops_no_other_and_names_its_variable(
    make_variable: MakeVariable, place: Place
) -> None:
    small = es.StorageOption(es.StorageType.HBM, storage_size=[10 * 32])
    many = [
        make_variable(name="users", storage=hbm()),
        make_variable(name="items", storage=small),
        make_variable(name="ads", storage=hbm()),
    ]
    ids = np.arange(30)

    def train() -> None:
        grads = np.ones((30, 3), np.float32)
        es.apply_many(many, [place(ids)] * 3, [place(grads)] * 3)
        for variable in many:
            variable.synchronize()

    with pytest.raises(StoreFullError, match=r"items.*brings 30 new rows"):
        train()
    assert [variable.total_count()[0] for variable in many] == [30, 0, 30]


def refuse_on_gpu(var: es.EmbeddingVariable, ids: Ids) -> None:
    """Makes the GPU refuse a batch, so that the variable's next call raises the error."""
    batch = on_device(ids)
    var.apply_gradients(batch, on_device(np.full((ids.size, var.dim), np.nan, np.float32)))
    batch.numpy()  # waits for its stream


@pytest.mark.parametrize("partition_num", [1, 2])
def test_an_error_of_an_earlier_batch_on_the_gpu_stops_no_other_and_names_its_variable(
    make_variable: MakeVariable, place: Place, partition_num: int
) -> None:
    users, items, ads = (
        make_variable(name=name, storage=hbm(), partition_num=partition_num)
        for name in ("users", "items", "ads")
    )
    ids = np.arange(4)
    grads = np.ones((4, 3), np.float32)
    refuse_on_gpu(items, ids)
    with pytest.raises(InvalidArgumentError, match=r"^items[^:]*: grads must be finite"):
        es.apply_many(
            [users, items, ads],
            [place(ids), on_device(ids), on_device(ids)],
            [place(grads), on_device(grads), on_device(grads)],
        )
    for variable in (users, items, ads):
        variable.synchronize()  # the error is raised once
    assert [variable.total_count()[0] for variable in (users, items, ads)] == [4, 0, 4]
    refuse_on_gpu(users, ids)
    with pytest.raises(InvalidArgumentError, match=r"^users[^:]*: grads must be finite"):
        es.lookup_many([users, items], [on_device(ids), on_device(ids)], train=True)
    items.synchronize()
    assert items.stats()["misses"] == 4


def test_an_error_on_one_stream_stops_no_batch_on_another(make_variable: MakeVariable) -> None:
    users, items = (make_variable(name=name, storage=hbm()) for name in ("users", "items"))
    ids, grads = on_device(np.arange(4)), on_device(np.ones((4, 3), np.float32))
    failing, other = (ApplyStep.of(variable, ids, grads) for variable in (users, items))
    failing = replace(failing, ids=replace(failing.ids, stream=1 << 40))  # never used
    users.close()
    with pytest.raises(ClosedError, match="users"):
        apply_together([failing, other], None)
    items.synchronize()
    assert items.total_count()[0] == 4


def test_arguments_that_do_not_fit_name_their_variable(
    make_variable: MakeVariable, place: Place
) -> None:
    many = [make_variable(name="users", storage=hbm()), make_variable(name="items", storage=hbm())]
    ids = place(np.arange(4))
    grads = place(np.ones((4, 3), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"items.*ids must be int64, got float32"):
        es.lookup_many(many, [ids, place(np.ones(4, np.float32))])
    with pytest.raises(InvalidArgumentError, match="items: grads must"):
        es.apply_many(many, [ids, ids], [grads, place(np.ones((4, 2), np.float32))])
    # These variables' names are words or letters of the error message, so a search for a bare name
    # would find them by accident.
    for name in ("a", "ids", "int64"):
        named = make_variable(name=name, storage=hbm())
        with pytest.raises(InvalidArgumentError, match=f"^{name}: ids must be int64, got float32"):
            es.lookup_many([many[0], named], [ids, place(np.ones(4, np.float32))])
    with pytest.raises(InvalidArgumentError, match="ids must have one for each of 2 variables"):
        es.lookup_many(many, [ids])
    with pytest.raises(InvalidArgumentError, match="grads must have one for each of 2 variables"):
        es.apply_many(many, [ids, ids], [grads])
    with pytest.raises(InvalidArgumentError, match="variables must be EmbeddingVariables, got str"):
        es.lookup_many(["users"], [ids])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="global_step"):
        es.apply_many(many, [ids, ids], [grads, grads], global_step=-1)
    single: Any = many[0]
    with pytest.raises(InvalidArgumentError, match=r"variables must be a list; give \[users\]"):
        es.lookup_many(single, [ids])
    no_list: Any = iter(many)
    with pytest.raises(InvalidArgumentError, match="variables must be a list, got list_iterator"):
        es.apply_many(no_list, [ids, ids], [grads, grads])
    with pytest.raises(InvalidArgumentError, match="ids must be a list, got list_iterator"):
        es.lookup_many(many, iter([ids, ids]))  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_values_of_a_dict_are_taken_as_a_list(
    make_variable: MakeVariable, partitions: int
) -> None:
    variables: Any = {
        name: make_variable(name=name, partition_num=partitions) for name in ("users", "items")
    }.values()
    ids: Any = {"users": np.arange(4), "items": np.arange(5)}.values()
    grads: Any = {"users": np.ones((4, 3), np.float32), "items": np.ones((5, 3), np.float32)}
    es.apply_many(variables, ids, grads.values())
    assert [rows.shape for rows in es.lookup_many(variables, ids)] == [(4, 3), (5, 3)]
    grads["items"] = grads["items"] * np.nan
    with pytest.raises(InvalidArgumentError, match=r"^items: grads must be finite"):
        es.apply_many(variables, ids, grads.values())
    assert [variable.get_frequency(3) for variable in variables] == [2, 1]


def test_arguments_without_the_order_of_the_variables_are_refused(
    make_variable: MakeVariable,
) -> None:
    """The keys of a dict could be taken for ids, and a set has no order."""
    variables = [make_variable(name="users"), make_variable(name="items")]
    ids, grads = [np.arange(4)] * 2, [np.ones((4, 3), np.float32)] * 2
    cases: list[tuple[Any, Any, Any, str]] = [
        (variables, dict(enumerate(ids)), grads, "ids must be a list, got dict; .*by position"),
        (variables, ids, dict(enumerate(grads)), "grads must be a list, got dict"),
        (variables, {1, 2}, grads, "ids must be a list, got set"),
        (variables, "12", grads, "ids must be a list, got str"),
        (set(variables), ids, grads, "variables must be a list, got set"),
    ]
    for some_variables, some_ids, some_grads, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            es.apply_many(some_variables, some_ids, some_grads)
        if some_grads is grads:
            with pytest.raises(InvalidArgumentError, match=message):
                es.lookup_many(some_variables, some_ids)
    assert not any(map(len, variables))


def test_a_closed_variable_is_named_once(make_variable: MakeVariable) -> None:
    variable = make_variable(name="users")
    variable.close()
    with pytest.raises(ClosedError, match=r"^users is closed"):
        es.lookup_many([variable], [np.arange(4)])
    with pytest.raises(ClosedError, match=r"^users is closed"):
        es.apply_many([variable], [np.arange(4)], [np.ones((4, 3), np.float32)])


def test_a_variable_without_hbm_or_optimizer_says_which_it_is(make_variable: MakeVariable) -> None:
    many = [make_variable(name="users", storage=hbm()), make_variable(name="items")]
    ids = on_device(np.arange(4))
    with pytest.raises(InvalidArgumentError, match=f"ids are on {GPU}, but items has no tier"):
        es.lookup_many(many, [ids, ids])
    frozen = make_variable(name="ads", storage=hbm(), optimizer=None)
    grads = on_device(np.ones((4, 3), np.float32))
    with pytest.raises(InvalidArgumentError, match="ads was made without an optimizer"):
        es.apply_many([many[0], frozen], [ids, ids], [grads, grads])
    assert many[0].total_count() == (0, 3)


def test_other_variables_stay_on_the_gpu_while_one_is_saved(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    many = [make_variable(storage=hbm()) for _ in range(3)]
    alone = [make_variable() for _ in many]
    shard = many[1]._shards[0]
    assert isinstance(shard, LocalShard)
    request = SaveRequest(str(tmp_path / "rows"), bytes(16), 0, 1, False, None, None)
    with shard.prepare_save(request):
        for seed in range(3):
            batches = some_batches(seed, [3, 3, 3])
            ids = [on_device(own) for own, _ in batches]
            found = es.lookup_many(many, ids, train=True)
            es.apply_many(many, ids, [on_device(grads) for _, grads in batches])
            for variable, rows, (own, grads) in zip(alone, found, batches, strict=True):
                np.testing.assert_array_equal(rows_of(rows), variable.lookup(own, train=True))
                variable.apply_gradients(own, grads)
    for one, other in zip(many, alone, strict=True):
        assert_same(one.export(), other.export())


@pytest.mark.parametrize("partition_num", [1, 2])
def test_the_first_of_several_errors_is_raised_when_all_others_are_trained(
    make_variable: MakeVariable, partition_num: int
) -> None:
    names = ["users", "items", "ads", "shops"]
    many = [make_variable(name=name, partition_num=partition_num) for name in names]
    many[3].close()
    ids = np.arange(2)
    grads = [np.ones((2, 3), np.float32) for _ in many]
    grads[1][1, 2] = np.nan
    with pytest.raises(InvalidArgumentError, match=r"items: grads must be finite.*ids\[1\], key 1"):
        es.apply_many(many, [ids] * 4, grads)
    assert [variable.total_count()[0] for variable in many[:3]] == [2, 0, 2]
    grads[1] = np.ones((2, 3), np.float64)
    with pytest.raises(InvalidArgumentError, match="items: grads must be float32"):
        es.apply_many(many, [ids + 2] * 4, grads)
    assert [variable.total_count()[0] for variable in many[:3]] == [4, 0, 4]
    with pytest.raises(ClosedError, match="shops"):
        es.apply_many(many[2:], [ids] * 2, grads[2:])


def test_a_look_up_that_fails_stops_no_other_and_names_its_variable(
    make_variable: MakeVariable,
) -> None:
    many = [make_variable(name=name) for name in ("users", "items", "ads")]
    many[1].close()
    with pytest.raises(ClosedError, match="items is closed"):
        es.lookup_many(many, [np.arange(4)] * 3)
    assert [variable.stats()["misses"] for variable in many[::2]] == [4, 4]


def test_an_evaluation_of_several_variables_counts_nothing(
    make_variable: MakeVariable, storage_of: StorageOf
) -> None:
    storage = storage_of(Stack(es.StorageType.DRAM_SSDHASH), 1 << 20, upper_bytes=1 << 10)
    many = [make_variable(storage=storage), make_variable()]
    ids = np.arange(200)
    many[0].apply_gradients(ids, np.zeros((200, 3), np.float32))
    many[0].drain()
    before = many[0].lookup_tier(ids)
    below = ids[before != 0][:20]
    for _ in range(3):
        es.lookup_many(many, [below, below], count=False)
    many[0].drain()
    np.testing.assert_array_equal(many[0].lookup_tier(ids), before)
    for _ in range(3):
        es.lookup_many(many, [below, below])
    many[0].drain()
    assert not many[0].lookup_tier(below).any()


def test_an_error_about_damaged_rows_keeps_its_keys(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    var = make_variable(name="items", partition_num=2)

    def refuse(*_: Any, **__: Any) -> Any:
        raise DamagedRowsError("the row of key 7 can't be read", [7])

    monkeypatch.setattr(es.EmbeddingVariable, "lookup", refuse)
    with pytest.raises(DamagedRowsError, match="items: the row of key 7") as raised:
        es.lookup_many([var], [np.arange(3)])
    assert raised.value.keys == [7]
