"""The published rates of tables in GPU memory, compared with the model's."""

from __future__ import annotations

import pytest

from pmemlab.model.fidelity.gpus import gpu_section
from pmemlab.model.fidelity.rows import Row


def rows() -> dict[str, Row]:
    section = gpu_section()
    assert len({row.name for row in section.rows}) == len(section.rows)
    return {row.name: row for row in section.rows}


def test_a_rate_is_the_memory_s_bandwidth_over_the_bytes_per_id() -> None:
    found = rows()["HierarchicalKV 2022-10-14, find, dim 64, all in HBM"]
    assert found.published == pytest.approx(982.5, rel=1e-3)  # 0.915 * 2 ** 30
    assert found.predicted == pytest.approx(2_039_000 / (64 + 256 + 256), rel=1e-3)


def test_a_value_in_host_memory_costs_a_transfer_over_the_bus() -> None:
    mixed = rows()["HierarchicalKV 2022-10-14, find, dim 64, 50% of the values in host memory"]
    ns = (64 + 256 + 128) / 2039 + 128 / 32
    assert mixed.predicted == pytest.approx(1e3 / ns, rel=1e-3)


def test_every_published_rate_is_below_its_bound_and_none_has_an_aim() -> None:
    rates = [row for row in rows().values() if row.unit == "M ids/s"]
    assert len(rates) == 16
    assert all(row.published < row.predicted for row in rates)
    assert all(row.reached is None for row in rows().values())


def test_training_is_slower_than_look_ups_and_more_slots_are_slower_still() -> None:
    by_name = rows()
    looked_up, trained, with_slots = (
        by_name[f"dynamicemb, {what}, dim 128, all in HBM"].predicted
        for what in ("look-up, SGD", "look-up and update, SGD", "look-up and update, Adam")
    )
    assert looked_up > trained > with_slots
