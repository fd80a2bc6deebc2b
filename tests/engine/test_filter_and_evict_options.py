"""Filters and eviction refuse options that can't work, with an error that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embstore as es


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: es.CounterFilter(-1), "filter_freq"),
        (lambda: es.CounterFilter(2.5), "filter_freq"),  # type: ignore[arg-type]
        (lambda: es.CounterFilter(True), "filter_freq"),
        (lambda: es.CBFFilter(3, 0, 0.01), "max_element_size"),
        (lambda: es.CBFFilter(3, 5), "max_element_size must be left at 0"),
        (lambda: es.CBFFilter(3, 5, 0.0), "false_positive_probability"),
        (lambda: es.CBFFilter(3, 5, -0.5), "false_positive_probability"),
        (lambda: es.CBFFilter(3, 5, 1.0), "false_positive_probability"),
        (lambda: es.CBFFilter(3, 5, float("nan")), "false_positive_probability"),
        (lambda: es.CBFFilter(256, 5, 0.01, np.uint8), "filter_freq must be below 256"),
        (lambda: es.CBFFilter(3, 5, 0.01, np.float32), "counter_type"),
        (lambda: es.CBFFilter(3, 5, 0.01, "no type"), "counter_type"),
        (lambda: es.CBFFilter(3, 5, 0.01, "\ud800"), "counter_type"),
        (lambda: es.CBFFilter(3, 5, 0.01, SimpleNamespace(dtype=None)), "counter_type"),
        (lambda: es.GlobalStepEvict(0), "steps_to_live"),
        (lambda: es.L2WeightEvict(0.0), "l2_weight_threshold"),
        (lambda: es.L2WeightEvict(-0.5), "l2_weight_threshold"),
        (lambda: es.L2WeightEvict(float("inf")), "l2_weight_threshold"),
        (
            lambda: es.EmbeddingVariableOption(filter_option=es.GlobalStepEvict(1)),  # type: ignore[arg-type]
            "filter_option must be an embstore.CounterFilter or an embstore.CBFFilter",
        ),
        (
            lambda: es.EmbeddingVariableOption(evict_option=es.CounterFilter(1)),  # type: ignore[arg-type]
            "evict_option must be an embstore.GlobalStepEvict or an embstore.L2WeightEvict",
        ),
    ],
)
def test_an_option_that_cannot_work_is_refused(make: Callable[[], object], names: str) -> None:
    with pytest.raises(es.errors.InvalidArgumentError, match=names):
        make()


@pytest.mark.parametrize(
    ("counter_type", "bits"),
    [(np.uint8, 8), (np.uint16, 16), (np.dtype("u4"), 32), ("uint64", 64), (np.int64, 64)],
)
def test_counters_are_as_wide_as_their_type(counter_type: str, bits: int) -> None:
    assert es.CBFFilter(3, 5, 0.01, counter_type).counter_bits == bits


def test_an_option_without_filter_and_eviction_has_none() -> None:
    option = es.EmbeddingVariableOption()
    assert option.filter_option is None
    assert option.evict_option is None


OFF = [
    {"filter_option": es.CounterFilter()},
    {"filter_option": es.CBFFilter()},
    {"evict_option": es.GlobalStepEvict()},
    {"evict_option": es.L2WeightEvict()},
]


@pytest.mark.parametrize("options", OFF, ids=lambda options: repr(*options.values()))
def test_defaults_switch_a_filter_and_an_eviction_off(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with es.get_embedding_variable(
        "var",
        3,
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(0.0),
        ev_option=es.EmbeddingVariableOption(
            init_option=es.InitializerOption(default_value_no_permission=5.0), **options
        ),
    ) as variable:
        assert (variable.lookup([7], train=True) == 0).all()
        variable.apply_gradients([7], np.ones((1, 3), np.float32), global_step=0)
        assert variable.evict(1 << 40) == 0
        es.save(tmp_path / "save", [variable], global_step=1 << 40)
        es.restore(tmp_path / "save", [variable])
        assert variable.export()["keys"].tolist() == [7]


def test_a_bloom_filter_that_is_off_counts_each_key_by_itself(tmp_path: Path) -> None:
    saved = []
    for name, filter_option in (("one", es.CounterFilter(3)), ("other", es.CBFFilter(3))):
        option = es.EmbeddingVariableOption(filter_option=filter_option)
        with es.get_embedding_variable(
            "var", 3, optimizer=es.optimizers.SGD(0.1), ev_option=option
        ) as variable:
            for ids in ([1, 1, 2], [1, 3]):
                variable.apply_gradients(ids, np.ones((len(ids), 3), np.float32))
            assert variable.get_version([2]).tolist() == [0]  # a sketch would not know it
            assert variable.export()["keys"].tolist() == [1]
            es.save(tmp_path / name, [variable], global_step=2)
            saved.append(variable.get_frequency([1, 2, 3, 4]).tolist())
    assert saved == [[3, 1, 1, 0]] * 2


def test_an_initializer_class_stands_for_its_default_instance() -> None:
    for arguments in (
        {"initializer": es.initializers.Ones},
        {
            "ev_option": es.EmbeddingVariableOption(
                init_option=es.InitializerOption(initializer=es.initializers.Ones)
            )
        },
    ):
        with es.get_embedding_variable("var", 3, **arguments) as variable:
            assert (variable.lookup([1, 2]) == 1).all()
