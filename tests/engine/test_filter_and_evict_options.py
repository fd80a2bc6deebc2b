"""Filters and eviction refuse what can't work, in words that name the argument."""

from __future__ import annotations

from collections.abc import Callable

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
        (lambda: es.CBFFilter(3, 5, 0.0), "false_positive_probability"),
        (lambda: es.CBFFilter(3, 5, 1.0), "false_positive_probability"),
        (lambda: es.CBFFilter(3, 5, float("nan")), "false_positive_probability"),
        (lambda: es.CBFFilter(256, 5, 0.01, np.uint8), "filter_freq must be below 256"),
        (lambda: es.CBFFilter(3, 5, 0.01, np.float32), "counter_type"),
        (lambda: es.CBFFilter(3, 5, 0.01, "no type"), "counter_type"),
        (lambda: es.GlobalStepEvict(0), "steps_to_live"),
        (lambda: es.L2WeightEvict(0.0), "l2_weight_threshold"),
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
