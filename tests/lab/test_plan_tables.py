"""Plans for several tables, and for rows whose look-ups were counted."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from planned_devices import DISK, DRAM, MEMORY_MODE, PMEM

import embstore as es
from embstore.options import CacheStrategy
from pmemlab.cli import main
from pmemlab.errors import PlanError
from pmemlab.model.planning.caches import CacheUser, SharedCache
from pmemlab.model.planning.cpu_work import CpuWork, measure_cpu_work_of_all
from pmemlab.model.planning.hit_rates import LeastFrequent, LeastRecent
from pmemlab.model.planning.plan import Plan, Plans, Workload, make_plans
from pmemlab.model.planning.planned_tables import PlannedTable, load_tables, planned_table
from pmemlab.model.planning.popularity import BoundedZipf, CountedRows, Floats
from pmemlab.model.planning.prices import Holding, MachineShape, Prices, PriceSource
from pmemlab.model.planning.tiers import DevicePool

CPU = CpuWork(60.0, 370.0, "given")
POOL: DevicePool = {"DRAM": (DRAM, MEMORY_MODE), "PMEM": (PMEM,), "SSD": (DISK,)}
HOLDS = tuple(Holding((name,), capacity_gb=10_000) for name in ("dram", "pmem", "disk"))
SHAPE = MachineShape("m", 64, 1.0, HOLDS, PriceSource("a test", "none", "2026-01-01"))
PRICES = Prices(Path("prices.yaml"), 730, (SHAPE,))


def plans_of(*tables: PlannedTable, **changes: Any) -> Plans:
    workload = Workload(tables, lookups_per_s=1e6, batch_ids=50_000)
    return make_plans(replace(workload, **changes), POOL, PRICES, CPU)


def by_kind(plans: Plans) -> dict[tuple[str, tuple[str, ...]], Plan]:
    return {(plan.storage_type, plan.devices): plan for plan in plans.plans}


def zipf_ids(rows: int, skew: float, count: int) -> NDArray[np.int64]:
    """Returns ids drawn by a Zipf distribution over `rows` scattered keys."""
    p = BoundedZipf(rows, skew).probabilities(1, rows)
    return np.random.default_rng(1).choice(rows, count, p=p / p.sum()) * 7919 - 5


# --- Counted rows


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=40),
    st.integers(0, 5),
    st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_sums_over_counted_rows_equal_those_of_a_loop(
    counts: list[int], unrequested_rows: int, ends: tuple[int, int]
) -> None:
    rows = len(counts) + unrequested_rows
    p = np.array([*sorted(counts, reverse=True), *[0] * unrequested_rows]) / sum(counts)
    counted = CountedRows(np.array(counts), rows)
    first, last = min(ends), max(ends)

    def squared(p: Floats) -> Floats:
        return np.asarray(p * p)

    assert counted.total(squared, first, last) == pytest.approx((p[first - 1 : last] ** 2).sum())
    assert counted.total(squared) == pytest.approx((p**2).sum())
    np.testing.assert_allclose(counted.probabilities(1, rows), p)
    assert counted.hottest_share == p[0]
    assert counted.longest_interval == pytest.approx(1 / p[len(counts) - 1])
    head = counted.head(min(first, rows))
    kept = p[: min(first, rows)]
    np.testing.assert_allclose(head.probabilities(1, len(kept)), kept / kept.sum())


def test_counts_of_many_ids_have_the_hit_rates_of_their_distribution() -> None:
    rows, upper = 2000, [200, 500]
    _, counts = np.unique(zipf_ids(rows, 1.05, 400_000), return_counts=True)
    counted, zipf = CountedRows(counts, rows), BoundedZipf(rows, 1.05)
    for placement in (LeastFrequent, LeastRecent):
        np.testing.assert_allclose(
            placement(counted, upper).hit_rates(), placement(zipf, upper).hit_rates(), atol=0.01
        )


def test_counted_rows_are_planned_like_their_distribution() -> None:
    rows = 5000
    _, counts = np.unique(zipf_ids(rows, 1.05, 1_000_000), return_counts=True)
    drawn = PlannedTable("t", 64, es.optimizers.Adagrad(0.1), CountedRows(counts, rows))
    for strategy in CacheStrategy:
        counted = by_kind(plans_of(drawn, cache_strategy=strategy))
        skewed = by_kind(
            plans_of(planned_table("t", rows=rows, dim=64, skew=1.05), cache_strategy=strategy)
        )
        assert counted.keys() == skewed.keys()
        for kind, plan in counted.items():
            assert plan.lookups_per_s == pytest.approx(skewed[kind].lookups_per_s, rel=0.03), kind
            assert [t.bytes for t in plan.tiers] == [t.bytes for t in skewed[kind].tiers]


# --- Several tables


def test_two_equal_tables_take_twice_the_bytes_and_about_the_same_time() -> None:
    half = planned_table("half", rows=1_000_000, dim=64, skew=1.05)
    halves = by_kind(plans_of(half, replace(half, name="other half")))
    one = by_kind(plans_of(half))
    for kind, plan in halves.items():
        assert [tier.rows for tier in plan.tiers] == [2 * tier.rows for tier in one[kind].tiers]
        assert [tier.bytes for tier in plan.tiers] == [2 * tier.bytes for tier in one[kind].tiers]
        assert plan.index_bytes == 2 * one[kind].index_bytes
        assert plan.hit_rate == pytest.approx(one[kind].hit_rate)
        # Half a batch has more different rows per id.
        assert 0.7 < plan.lookups_per_s / one[kind].lookups_per_s <= 1.001


def test_hit_rates_are_means_weighted_by_each_table_s_ids() -> None:
    large = planned_table("large", rows=3_000_000, dim=64, skew=1.05)
    small = planned_table("small", rows=1000, dim=64, skew=0.5)
    hit_rates = {
        share: by_kind(plans_of(large, replace(small, ids_a_sample=share)))[
            "DRAM_SSDHASH", ("dram", "disk")
        ].hit_rate
        for share in (1.0, 3.0)
    }
    alone = [
        by_kind(plans_of(table))["DRAM_SSDHASH", ("dram", "disk")].hit_rate
        for table in (large, small)
    ]
    assert hit_rates[1.0] == pytest.approx((alone[0] + alone[1]) / 2)
    assert hit_rates[3.0] == pytest.approx((alone[0] + 3 * alone[1]) / 4)


def test_the_hottest_row_may_be_in_any_table() -> None:
    tiny = planned_table("tiny", rows=2, dim=64, skew=0.0, ids_a_sample=1.0)
    large = planned_table("large", rows=3_000_000, dim=64, skew=0.2, ids_a_sample=9.0)
    # Each of the two rows of the tiny table has 5 % of all look-ups.
    workload = Workload((tiny, large), lookups_per_s=1e12)
    with pytest.raises(PlanError, match=r"and of 1e\+12 look-ups a second 5\.0% are its"):
        make_plans(workload, {"DRAM": (DRAM,)}, PRICES, CPU)


def test_tables_share_a_cache_according_to_their_look_ups() -> None:
    hot, cold = BoundedZipf(1000, 1.05), BoundedZipf(1000, 0.2)
    cache = SharedCache([CacheUser(hot, 0.8, 64), CacheUser(cold, 0.2, 128)])
    byte_shares = cache.byte_shares(64 * 500)
    assert sum(byte_shares) == pytest.approx(1)
    rows = np.concatenate([np.arange(1000), 1000 + np.arange(1000)])
    p = np.concatenate([0.8 * hot.probabilities(1, 1000), 0.2 * cold.probabilities(1, 1000)])
    bytes_of = np.where(rows < 1000, 64, 128)
    # Simulates a shared LRU list, and samples its contents after a warm-up.
    last: dict[int, None] = {}
    held, seen = 0, []
    for n, row in enumerate(np.random.default_rng(1).choice(rows, 30_000, p=p / p.sum()).tolist()):
        if row in last:
            del last[row]
        else:
            held += int(bytes_of[row])
        last[row] = None
        while held > 64 * 500:
            oldest = next(iter(last))
            del last[oldest]
            held -= int(bytes_of[oldest])
        if n > 10_000 and n % 100 == 0:
            seen.append(sum(64 for row in last if row < 1000) / (64 * 500))
    assert byte_shares[0] == pytest.approx(np.mean(seen), abs=0.02)
    for enough in (0, 1000 * (64 + 128)):
        assert cache.byte_shares(enough) == (1.0, 1.0)
    assert SharedCache([CacheUser(hot, 1.0, 64)]).byte_shares(640) == (1.0,)


def test_the_cpu_s_work_is_a_mean_weighted_by_each_table_s_ids() -> None:
    tables = [
        planned_table("narrow", rows=1000, dim=4, skew=1.0),
        planned_table("wide", rows=1000, dim=512, skew=1.0),
        planned_table("as narrow", rows=500, dim=4, skew=1.0),
    ]
    mean = measure_cpu_work_of_all(tables, (0.5, 0.25, 0.25), training=False)
    assert "each of 2 kinds of tables" in mean.source
    alone = [
        measure_cpu_work_of_all([table], (1.0,), training=False).ns_per_lookup
        for table in tables[:2]
    ]
    assert alone[0] < mean.ns_per_lookup < alone[1]


# --- Files


TABLES = """
tables:
  - {name: users, rows: 2e6, dim: 64, skew: 1.05}
  - {name: items, dim: 16, optimizer: adam, ids: ids.npy, ids_a_sample: 20}
  - {name: shops, recorded: shops, rows: 500}
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    pytest.importorskip("safetensors")
    np.save(tmp_path / "ids.npy", zipf_ids(300, 1.05, 50_000).reshape(-1, 10))
    with es.get_embedding_variable("shops", 8, optimizer=es.optimizers.SGD(0.1)) as shops:
        shops.apply_gradients([7, 7, 7, 9], np.ones((4, 8), np.float32))
        es.write_rows(tmp_path / "shops", shops, file_format="safetensors")
    file = tmp_path / "tables.yaml"
    file.write_text(TABLES)
    return file


def test_a_file_lists_tables(tables: Path) -> None:
    users, items, shops = load_tables(tables)
    assert (users.name, users.rows, users.dim, users.ids_a_sample) == ("users", 2_000_000, 64, 1)
    assert users.popularity.text == "Zipf(1.05)"
    assert (items.rows, items.dim, items.optimizer.name) == (300, 16, "Adam")
    assert items.popularity.text == "50,000 ids of ids.npy"
    assert (shops.rows, shops.dim) == (500, 8)
    assert shops.popularity.hottest_share == 0.75
    assert shops.popularity.text == "4 look-ups counted in shops"


def test_the_command_takes_a_file_of_tables(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    file = tables.with_name("plan.json")
    command = ["model", "plan", "--tables", str(tables), "--lookups-per-s=5e6", "--json", str(file)]
    assert main([*command, "--cpu-ns-per-lookup=60", "--devices", "ddr4-2666-x6"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 tables of 2.001e+06 rows" in printed
    assert "shops: 4 look-ups counted in shops are few for its rows" in printed
    assert "items: 50,000" not in printed
    workload = json.loads(file.read_text())["workload"]
    assert [table["name"] for table in workload["tables"]] == ["users", "items", "shops"]
    assert [table["ids_a_sample"] for table in workload["tables"]] == [1, 20, 1]


def test_the_command_takes_ids_or_a_recording_of_one_table(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["model", "plan", "--lookups-per-s=5e6", "--cpu-ns-per-lookup=60"]
    command += ["--devices", "ddr4-2666-x6"]
    assert main([*command, "--ids", str(tables.with_name("ids.npy")), "--dim=16"]) == 0
    assert "300 rows of 128 bytes, asked for by 50,000 ids of ids.npy" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main([*command, "--recorded", str(tables.with_name("shops"))]) == 0
    assert "2 rows of 64 bytes" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{dim: 4, rows: 5, skew: 1}", r"tables.yaml:2: tables\[0\].name"),
        ("{name: t, rows: 5, skew: 1}", "table t: t: --dim is missing"),
        ("{name: t, dim: 4, skew: 1}", "table t: t: --rows is missing, which --skew needs"),
        ("{name: t, dim: 4, rows: 5}", "give one of --skew, --ids and --recorded, got none"),
        ("{name: t, dim: 4, ids: i, recorded: r}", "got --ids, --recorded"),
        ("{name: t, dim: 4, rows: many, skew: 1}", "must be a whole number above 0, for example"),
        ("{name: t, dim: 4, rows: 1.5, skew: 1}", "must be a whole number above 0, for example"),
        ("{name: t, dim: 0, rows: 5, skew: 1}", "dim: must be a whole number above 0"),
        ("{name: t, dim: 4, rows: 5, skew: -1}", "skew: must be a number of at least 0"),
        ("{name: t, dim: 4, ids: none.npy}", r"none.npy: can't be read: .* No such file"),
        ("{name: t, dim: 4, ids: cut.npy}", r"cut.npy: is no whole .npy file of ids"),
        (
            "{name: t, dim: 4, ids: ids.csv}",
            r"ids.csv: .*; numpy.save\(PATH, ids\)",
        ),
        ("{name: t, dim: 4, ids: fifo.npy}", "fifo.npy: is a FIFO; give a file of ids"),
        ("{name: t, dim: 4, ids: floats.npy}", "must hold ids, which are integers, got float64"),
        ("{name: t, dim: 4, ids: empty.npy}", "ids of empty.npy: has no ids"),
        ("{name: t, dim: 4, rows: 2, ids: three.npy}", "has 3 different ids, .* the 2 rows"),
        ("{name: t, recorded: none}", "there is no such file or folder"),
        ("{name: t, dim: 4, rows: 5, skew: 1, optimizer: lion}", "--optimizer lion: must be one"),
        ("{name: t, dim: 4, rows: 5, skew: 1, colour: 1}", "colour: is no field here"),
    ],
)
def test_errors_in_a_file_of_tables_are_named(entry: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "cut.npy").touch()
    (tmp_path / "ids.csv").write_text("1\n2\n")
    os.mkfifo(tmp_path / "fifo.npy")
    np.save(tmp_path / "floats.npy", np.ones(3))
    np.save(tmp_path / "empty.npy", np.empty(0, np.int64))
    np.save(tmp_path / "three.npy", np.arange(3))
    file = tmp_path / "tables.yaml"
    file.write_text(f"tables:\n  - {entry}\n")
    with pytest.raises(PlanError, match=problem) as raised:
        load_tables(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rows": 0}, "--rows 0: must be 1"),
        ({"rows": 10**300}, r"--rows 1e\+300: must be 1 or more, and 2\^64 at most"),
        ({"dim": 0}, "--dim 0: must be from 1 to"),
        ({"dim": 10**9}, "--dim 1000000000: must be from 1 to"),
        ({"skew": -1.0}, "--skew -1.0: must be 0"),
        ({"skew": math.nan}, "--skew nan: must be 0"),
    ],
)
def test_an_impossible_table_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        planned_table("table", **{"rows": 10, "dim": 4, "skew": 1.0, **changes})


def test_two_tables_with_the_same_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text("tables:\n" + "  - {name: t, dim: 4, rows: 5, skew: 1}\n" * 2)
    with pytest.raises(PlanError, match="there is a table t already"):
        load_tables(file)
