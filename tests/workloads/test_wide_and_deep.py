"""The two networks of Wide & Deep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest

import embstore as es
from pmemlab.workloads.synthetic import SyntheticSource
from pmemlab.workloads.wide_and_deep import DENSE_LIBRARIES, DenseLibrary
from pmemlab.workloads.wide_and_deep.network import Network, make_network
from pmemlab.workloads.wide_and_deep.tables import EmbeddingTables, ModelOptions

BATCHES = list(
    islice(SyntheticSource(seed=5, keys_per_column=20_000, held_out_rows=10).train_batches(64), 20)
)
OPTIONS = ModelOptions(embedding_dim=8, hidden_units=(32, 16))


@contextmanager
def new_network(dense: DenseLibrary) -> Iterator[tuple[Network, EmbeddingTables]]:
    with EmbeddingTables(es.StorageOption(es.StorageType.DRAM), OPTIONS) as tables:
        yield make_network(dense, tables, OPTIONS), tables


def test_both_networks_train_alike_from_the_same_state() -> None:
    """They differ only in the order in which sums of 32-bit floats are rounded."""
    with new_network("torch") as (by_torch, torch_tables), new_network("numpy") as (ours, tables):
        ours.load_state(by_torch.state())
        before = {name: array.copy() for name, array in ours.state().items()}
        for batch in BATCHES:
            assert ours.train(batch) == pytest.approx(by_torch.train(batch), rel=1e-5)
        state = by_torch.state()
        for name, array in ours.state().items():
            np.testing.assert_allclose(array, state[name], rtol=1e-3, atol=1e-5)
            assert not np.array_equal(array, before[name]), f"{name} isn't trained"
        for one, other in zip(tables, torch_tables, strict=True):
            rows, others = one.export(), other.export()
            np.testing.assert_array_equal(rows["keys"], others["keys"])
            np.testing.assert_array_equal(rows["freqs"], others["freqs"])
            np.testing.assert_allclose(rows["values"], others["values"], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            ours.predict(BATCHES[0]), by_torch.predict(BATCHES[0]), rtol=1e-4
        )


@pytest.mark.parametrize("dense", DENSE_LIBRARIES)
def test_predicting_trains_nothing_and_counts_no_look_up(dense: DenseLibrary) -> None:
    with new_network(dense) as (network, tables):
        network.train(BATCHES[0])
        looked_up = network.lookup_clock.rows
        kept = {name: array.copy() for name, array in network.state().items()}
        rows = [table.total_count() for table in tables]
        chances = network.predict(BATCHES[1])
        np.testing.assert_array_equal(network.predict(BATCHES[1]), chances)
        assert ((chances > 0) & (chances < 1)).all()
        assert chances.shape == (64,)
        assert network.lookup_clock.rows == looked_up == 2 * 26 * 64
        assert [table.total_count() for table in tables] == rows
        for name, array in network.state().items():
            np.testing.assert_array_equal(array, kept[name])


@pytest.mark.parametrize("dense", DENSE_LIBRARIES)
def test_the_state_of_another_model_is_refused_by_name(dense: DenseLibrary) -> None:
    with new_network(dense) as (network, _):
        state = {name: array.copy() for name, array in network.state().items()}
        with pytest.raises(ValueError, match="sum_3 is in the model alone"):
            network.load_state({name: a for name, a in state.items() if name != "sum_3"})
        with pytest.raises(ValueError, match="more is in the file alone"):
            network.load_state({**state, "more": state["sum_3"]})
        with pytest.raises(ValueError, match=r"parameter_2 has shape \(1,\), and \(32, 221\)"):
            network.load_state({**state, "parameter_2": state["parameter_1"]})
        for name, array in network.state().items():
            np.testing.assert_array_equal(array, state[name])
