"""An error about bad input names the argument and says what would do. Nothing is lost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable, skip_without_library
from programs import no_file_grows_beyond

import embstore as es
from embstore.errors import (
    EmbStoreError,
    InvalidArgumentError,
    StorageError,
    UnsupportedError,
)

PMEM = es.StorageType.PMEM_LIBPMEM


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([1.0]), "ids must be int64, got float64"),
        (np.array([1], np.uint64), "ids must be int64, got uint64"),
        (np.array([True]), "ids must be int64, got bool"),
        (np.array([], np.float32), "ids must be int64, got float32"),
        (["1"], "ids must be int64"),
        ([2**63], "ids must be int64, got uint64"),
        ([1.5], "ids must be int64, got float64"),
        ([[1], [2, 3]], "ids must be"),
        (np.ma.masked_array([1, 2], [False, True]), r"ids must be a plain array.*ids\.compressed"),
        ([np.array([1]), np.ma.masked_array([2], [True])], "ids must be a plain array"),
        (None, "ids must be int64"),
        ([1 + 0j], "ids must be int64, got complex128"),
        ([2**70], "ids must be int64, got object"),
    ],
)
def test_ids_of_another_kind_are_refused_by_every_call(
    make_variable: MakeVariable, ids: Any, message: str
) -> None:
    var = make_variable()
    for read in (var.lookup, var.lookup_tier, var.get_frequency, var.get_version):
        with pytest.raises(InvalidArgumentError, match=message):
            read(ids)
    with pytest.raises(InvalidArgumentError, match=message):
        var.apply_gradients(ids, np.ones((1, 3), np.float32))
    assert var.total_count() == (0, 3)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("argument", ["train", "count"])
def test_train_and_count_of_a_look_up_must_be_bools_of_python_or_numpy(
    make_variable: MakeVariable, argument: str, partitions: int
) -> None:
    var = make_variable(partition_num=partitions)
    look_ups: list[Callable[..., Any]] = [
        lambda **how: var.lookup([1], **how),
        lambda **how: es.lookup_many([var], [[1]], **how)[0],
    ]
    for look_up in look_ups:
        for value in (1, "no", None):
            with pytest.raises(InvalidArgumentError, match=f"{argument} must be True or False"):
                look_up(**{argument: value})
        np.testing.assert_array_equal(look_up(**{argument: np.bool_(True)}), var.lookup([1]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("grads", "message"),
    [
        (np.ones((2, 3)), "grads must be float32, got float64"),
        (np.ones((2, 3), np.int64), "grads must be float32, got int64"),
        (np.ones((3, 2), np.float32), r"grads must have the shape .* \(2, 3\), got \(3, 2\)"),
        (np.ones((2,), np.float32), r"got \(2,\)"),
        (np.ones((1, 3), np.float32), r"got \(1, 3\)"),
        (np.float32(1), r"got \(\)"),
        ([["a", "b", "c"]] * 2, "grads must be numbers"),
        ([[1, 2, 3], [1]], "grads must be"),
        ([[1j] * 3] * 2, "grads must be numbers, got complex128"),
        (np.full((2, 3), 1j), "grads must be numbers, got complex128"),
        ([["1"] * 3] * 2, "grads must be numbers, got <U1"),
        ([[b"1"] * 3] * 2, "grads must be numbers, got |S1"),
        ([[None] * 3] * 2, "grads must be numbers, got object"),
        ([["1", 2**70, 3]] * 2, "grads must be numbers"),
        ([[2**70, 1j, 3]] * 2, "grads must be numbers"),
        ([[math.inf] * 3] * 2, "grads must be finite"),
        ([[1e39] * 3] * 2, r"grads must be at most 3\.40282e\+38 in size"),
        ([[10**400] * 3] * 2, r"grads must be at most 3\.40282e\+38 in size"),
        (np.ma.masked_array(np.ones((2, 3), np.float32)), r"grads must be .*grads\.filled\(0\)"),
    ],
)
def test_gradients_that_dont_fit_are_refused(
    make_variable: MakeVariable, grads: Any, message: str
) -> None:
    var = make_variable()
    with pytest.raises(InvalidArgumentError, match=message):
        var.apply_gradients([1, 2], grads)
    assert var.total_count() == (0, 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1j] * 3] * 2, "values must be numbers, got complex128"),
        ([["1"] * 3] * 2, "values must be numbers, got <U1"),
        ([[1e39] * 3] * 2, r"values must be at most 3\.40282e\+38 in size"),
    ],
)
def test_values_that_arent_numbers_cant_be_put(
    make_variable: MakeVariable, values: Any, message: str
) -> None:
    var = make_variable()
    with pytest.raises(InvalidArgumentError, match=message):
        var.put([1, 2], values)
    with pytest.raises(InvalidArgumentError, match=message.replace("values", r"slots\[.*\]")):
        var.put([1, 2], [[1.0] * 3] * 2, slots={"accumulator": values})
    assert var.total_count() == (0, 3)


@pytest.mark.parametrize(
    "grads", [[[True, False, True]], [[1, 2**70, 3]], [[Fraction(1, 2), 1, 0.5]]]
)
def test_lists_of_any_real_numbers_are_gradients(make_variable: MakeVariable, grads: Any) -> None:
    var = make_variable()
    var.apply_gradients([1], grads)
    assert np.isfinite(var.lookup([1])).all()


@pytest.mark.parametrize("step", [-1, 1.5, "7", True, 2**63, pytest.param(10**5000, id="huge")])
def test_a_global_step_that_is_no_int64_from_0_is_refused(
    make_variable: MakeVariable, step: Any
) -> None:
    var = make_variable()
    with pytest.raises(InvalidArgumentError, match="global_step must be"):
        var.apply_gradients([1], np.ones((1, 3), np.float32), global_step=step)
    assert var.total_count() == (0, 3)


@pytest.mark.parametrize(
    "out",
    [
        np.ones((2, 3)),
        np.ones((3, 2), np.float32),
        np.ones((3, 2), np.float32).T,
        np.ones((2, 6), np.float32)[:, ::2],
        [[0.0] * 3] * 2,
        np.ma.masked_array(np.ones((2, 3), np.float32), True),
    ],
)
def test_an_output_array_of_another_type_or_shape_is_refused(
    make_variable: MakeVariable, out: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match="out must be"):
        make_variable().lookup([1, 2], out=out)


def test_a_read_only_output_array_is_refused(make_variable: MakeVariable) -> None:
    out = np.ones((1, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="writeable"):
        make_variable().lookup([1], out=out)


@pytest.mark.parametrize("partition_num", [1, 2])
def test_an_output_array_that_overlaps_the_ids_is_refused(
    make_variable: MakeVariable, partition_num: int
) -> None:
    var = make_variable(partition_num=partition_num)
    ids = np.array([1, 2, 3])
    out = ids.view(np.float32).reshape(2, 3)
    with pytest.raises(InvalidArgumentError, match="out must not share memory with ids; give a"):
        var.lookup(ids[1:], out=out)
    assert ids.tolist() == [1, 2, 3]
    room = np.empty(8, np.int64)
    beside = room[2:].view(np.float32).reshape(4, 3)[:3]
    room[:2] = 1
    assert var.lookup(room[:2], out=beside[:2]).shape == (2, 3)  # one ends where the other begins
    assert room[:2].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "embedding_dim must be at least 1, got 0"),
        ({"dim": -3}, "embedding_dim must be at least 1, got -3"),
        ({"dim": 2.0}, "embedding_dim must be an integer"),
        ({"dim": 10**6}, "embedding_dim must be at most 65536"),
        ({"name": ""}, "name must be a string"),
        ({"name": 3}, "name must be a string"),
        ({"partition_num": 0}, "partition_num must be at least 1"),
        ({"optimizer": "adagrad"}, "optimizer must be one of .*Adagrad.*, got str"),
        ({"optimizer": es.optimizers.Adagrad}, "optimizer is the class Adagrad"),
        ({"storage": "DRAM"}, "storage_option must be an embstore.StorageOption, got str"),
        ({"init": 7}, "init_option must be an embstore.InitializerOption"),
    ],
)
def test_a_variable_that_cant_be_made_says_why(
    make_variable: MakeVariable, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make_variable(**arguments)


@pytest.mark.parametrize("rows", [10**12, 2**63 - 1])
def test_more_initial_rows_than_there_is_memory_for_are_refused(
    make_variable: MakeVariable, rows: int
) -> None:
    option = es.InitializerOption(default_value_dim=rows)
    with pytest.raises(InvalidArgumentError, match=rf"default_value_dim={rows}: .* lower it"):
        make_variable(init=option)


def test_an_option_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="ev_option must be"):
        es.get_embedding_variable("var", 3, ev_option=es.StorageOption())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"storage_type": 99}, r"storage_type must be .*DRAM, PMEM_MEMKIND.*, got 99"),
        ({"storage_type": "DRUM"}, r"storage_type must be .* or its name \(DRAM, .*\), got 'DRUM'"),
        ({"storage_type": None}, "storage_type must be an embstore.StorageType"),
        ({"cache_strategy": 7}, r"cache_strategy must be .*\(LRU, LFU\), got 7"),
        ({"cache_strategy": "fifo"}, r"cache_strategy must be .*\(LRU, LFU\), got 'fifo'"),
        ({"storage_size": [0]}, r"storage_size\[0\] must be at least 1 bytes, got 0"),
        ({"storage_size": [-5]}, r"storage_size\[0\] must be at least 1 bytes, got -5"),
        ({"storage_size": [1.5]}, r"storage_size\[0\] must be an integer"),
        ({"storage_size": 1024}, "storage_size must be a list of bytes"),
        ({"storage_size": "4G"}, r"storage_size must be a list .*, such as \['512M'\], got '4G'"),
        ({"storage_size": ["4GB"]}, r"storage_size\[0\] must be .*, such as '512M', got '4GB'"),
        ({"storage_size": [1, 2]}, "storage_size has 2 entries, but DRAM has 1 tiers"),
        ({"storage_type": PMEM}, "storage_path is missing: the PMEM_LIBPMEM tier"),
        ({"storage_type": PMEM, "storage_path": [None]}, "storage_path is missing"),
        ({"storage_type": PMEM, "storage_path": ""}, "storage_path must name a directory"),
        ({"storage_type": PMEM, "storage_path": "\ud800"}, "storage_path must be text that UTF-8"),
        ({"storage_type": PMEM, "storage_path": 3}, "storage_path must be a path"),
        ({"storage_type": PMEM, "storage_path": b"a"}, "storage_path must be a path or a list"),
        ({"storage_type": PMEM, "storage_path": ["a", "b"]}, "one entry, or None, for each"),
        ({"storage_path": ["a"]}, "the DRAM tier of DRAM keeps no file"),
        ({"storage_type": es.StorageType.DRAM_LEVELDB}, "storage_path is missing: the LEVELDB"),
    ],
)
def test_a_storage_option_that_cant_work_says_why(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.StorageOption(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"default_value_dim": 0}, "default_value_dim must be at least 1"),
        ({"default_value_dim": 1.5}, "default_value_dim must be an integer"),
        ({"default_value_no_permission": "no"}, "default_value_no_permission must be a number"),
        (
            {"default_value_no_permission": 1e300},
            r"default_value_no_permission must be at most 3\.4",
        ),
        ({"initializer": es.initializers.Constant}, "initializer is the class Constant"),
    ],
)
def test_an_initializer_option_that_cant_work_says_why(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.InitializerOption(**arguments)


def test_a_size_that_holds_no_row_is_refused(make_variable: MakeVariable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"storage_size: 31 bytes hold no row of 32"):
        make_variable(storage=es.StorageOption(storage_size=[31]))


def pmem(path: Path, size_bytes: int = 4096) -> es.StorageOption:
    skip_without_library(PMEM)
    return es.StorageOption(PMEM, storage_path=path, storage_size=[size_bytes])


def test_a_directory_whose_parent_is_missing_is_an_error(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    path = tmp_path / "unmounted" / "rows"
    with pytest.raises(StorageError, match=rf"storage_path: {path} .*unmounted doesn't exist"):
        make_variable(storage=pmem(path))


@pytest.mark.parametrize("name", ["a\0b", "\udcff"])
def test_a_path_that_no_folder_can_have_is_an_error(
    make_variable: MakeVariable, tmp_path: Path, name: str
) -> None:
    path, variable = tmp_path / name, make_variable()
    calls: list[Callable[[], object]] = [
        lambda: es.save(path, [variable]),
        lambda: es.save_incremental(path, [variable], 1),
        lambda: es.restore(path, [variable]),
        lambda: es.Checkpoints(path),
        lambda: es.persisted(path),
        lambda: es.write_rows(path, variable),
        lambda: es.read_rows(path, variable),
    ]
    es.save(tmp_path / "saved", [variable])
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"path must be text .*without NUL"):
            call()
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_a_path_that_is_a_file_is_an_error(make_variable: MakeVariable, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("keep me")
    with pytest.raises(StorageError, match=f"storage_path: {path} is a file"):
        make_variable(storage=pmem(path))
    assert path.read_text() == "keep me"


def test_a_path_that_cant_be_written_is_an_error(make_variable: MakeVariable) -> None:
    with pytest.raises(StorageError, match="/proc"):
        make_variable(storage=pmem(Path("/proc")))
    with pytest.raises(StorageError, match="/proc/rows can't be made"):
        make_variable(storage=pmem(Path("/proc/rows")))


def test_a_file_that_there_is_no_room_for_is_an_error(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    with no_file_grows_beyond(1 << 20):
        with pytest.raises(StorageError, match=rf"{tmp_path}.*\d+ bytes.*File too large"):
            make_variable(storage=pmem(tmp_path, 4 << 20))
        assert list(tmp_path.iterdir()) == []
        make_variable(storage=pmem(tmp_path, 1 << 19))


def test_every_error_is_an_embstore_error_and_a_builtin_one_if_one_fits() -> None:
    errors = [getattr(es.errors, name) for name in es.errors.__all__]
    assert all(issubclass(error, EmbStoreError) for error in errors)
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(UnsupportedError, NotImplementedError)
    assert issubclass(StorageError, OSError)
    assert issubclass(es.errors.MissingLibraryError, ImportError)


@pytest.mark.parametrize("what", [None, 5, np.array(5)])
def test_every_call_refuses_variables_that_are_no_list(what: Any, tmp_path: Path) -> None:
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (es.save, (tmp_path / "save", what)),
        (es.save_incremental, (tmp_path / "save", what, 1)),
        (es.restore, (tmp_path / "save", what)),
        (es.persist, (what, tmp_path / "persisted", 1)),
        (es.should_persist, (what,)),
        (es.Monitor, (what,)),
        (es.lookup_many, (what, [])),
        (es.record_accesses, (what,)),
    ]
    for call, arguments in calls:
        with pytest.raises(InvalidArgumentError, match="variables must be a list of Embedding"):
            call(*arguments)


def test_what_holds_variables_is_refused_with_the_way_to_get_them(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    module = SimpleNamespace(variable=make_variable())
    cases: list[tuple[Any, str]] = [
        (
            {"users": module.variable},
            r"list of EmbeddingVariables, got dict; give its \.values\(\)",
        ),
        ([module], r"EmbeddingVariables, got SimpleNamespace; give its \.variable"),
        (module, r"list of EmbeddingVariables, got SimpleNamespace; give its \.variable"),
    ]
    for variables, message in cases:
        with pytest.raises(InvalidArgumentError, match=f"variables must be (a )?{message}"):
            es.save(tmp_path / "save", variables)


@pytest.mark.parametrize(("nothing", "kind"), [(None, "NoneType"), (np.array(5), "ndarray")])
def test_batches_that_are_not_iterable_are_refused(nothing: Any, kind: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"batches must be iterable, got {kind}"):
        es.prefetching(nothing, {})


def test_a_batch_whose_ids_cant_be_prefetched_names_the_variable(
    make_variable: MakeVariable,
) -> None:
    ids_of: Any = {make_variable(name="users"): lambda batch: batch}
    with pytest.raises(InvalidArgumentError, match=r"^users: ids must be int64, got float64"):
        list(es.prefetching([[1.5]], ids_of))


def test_a_stop_iteration_of_a_function_of_ids_drops_no_batch_silently(
    make_variable: MakeVariable,
) -> None:
    ids = iter([[1], [2]])
    batches = es.prefetching([1, 2, 3], {make_variable(): lambda _: next(ids)})
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(batches)


def test_a_number_is_refused_as_a_list_of_batches(make_variable: MakeVariable) -> None:
    ids: Any = np.array(5)
    with pytest.raises(InvalidArgumentError, match="ids must be a list, got ndarray"):
        es.lookup_many([make_variable()], ids)


@pytest.mark.parametrize(
    ("incremental", "message"),
    [
        ([3], r"incremental\[0\] must name a directory, got 3"),
        (["a", ""], r"incremental\[1\] must name a directory, got ''"),
        (np.array(3), "incremental must be a list of paths"),
    ],
)
def test_an_invalid_path_of_an_incremental_save_is_named(
    make_variable: MakeVariable, tmp_path: Path, incremental: Any, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.restore(tmp_path, [make_variable()], incremental)


def test_a_folder_of_rows_that_cant_be_listed_is_named(
    make_variable: MakeVariable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(StorageError, match=f"{tmp_path}: can't be read: Permission denied"):
        make_variable(storage=es.StorageOption(es.StorageType.DRAM_SSDHASH, tmp_path))


def test_rows_are_not_written_over_the_root(make_variable: MakeVariable) -> None:
    with pytest.raises(StorageError, match=r"path: / .*; give a new folder"):
        es.write_rows("/", make_variable())


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda array: es.CBFFilter(1, 10, array), "false_positive_probability"),
        (lambda array: es.CBFFilter(1, array, -1.0), "max_element_size"),
        (lambda array: es.L2WeightEvict(array), "l2_weight_threshold"),
        (lambda array: es.StorageOption(durability=array), "durability"),
        (lambda array: es.record_accesses([], caches=array), "caches"),
        (lambda array: es.prefetching([], array), "ids_of"),
    ],
)
def test_an_array_is_refused_as_an_option(make: Callable[[Any], Any], argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{argument} must be"):
        make(np.array([1, 2]))
