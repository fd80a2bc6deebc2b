"""The tables that a run prints: meaningful rates, and separately the runs that only work."""

from __future__ import annotations

from dataclasses import replace

from test_metrics import METRIC

from pmemlab.scenarios.metrics import Metric
from pmemlab.scenarios.report import tables
from pmemlab.scenarios.rows import result_rows

OPTANE = ("ddr4-2666-x6", "optane-100-x6")


def metrics(storage_type: str, rate: float, auc: float | None = 0.7) -> list[Metric]:
    of_run = replace(METRIC, storage_type=storage_type)
    return [
        replace(of_run, name="samples_per_s", value=rate),
        replace(of_run, name="lookups_per_s", value=rate * 1000),
        replace(of_run, name="auc", value=auc, kind="measured"),
        replace(of_run, name="hit_rate", value=0.75, kind="measured"),
    ]


def on_this_computer(storage_type: str, rate: float) -> list[Metric]:
    return [
        replace(metric, machine="process", accelerator="none", kind="measured")
        for metric in metrics(storage_type, rate)
    ]


def test_a_run_on_emulated_media_works_and_has_no_rate() -> None:
    rows = result_rows(metrics("DRAM", 1234.4) + metrics("PMEM_LIBPMEM", 99, auc=None))
    text = tables(rows, width=120)
    assert text.startswith("works; the rates of these runs would say nothing")
    lines = text.splitlines()
    dram = next(line for line in lines if "DRAM" in line)
    assert dram.split() == ["fsdax", "DRAM", "guest", "(tcg)", "75%", "0.700"]
    libpmem = next(line for line in lines if "PMEM_LIBPMEM" in line)
    assert libpmem.split()[-2:] == ["75%", "-"]
    assert all(len(line) <= 120 for line in lines)
    assert "1,234" not in text
    assert "samples/s" not in text


def test_meaningful_rates_have_a_table_of_their_own_which_comes_first() -> None:
    rows = result_rows(metrics("PMEM_LIBPMEM", 7.0) + on_this_computer("DRAM", 1234.4))
    rates, works = tables(rows, width=120).split("works; the rates of these runs would say nothing")
    assert rates.startswith("rates, of real media or modelled devices:")
    (dram,) = (line for line in rates.splitlines() if "fsdax" in line)
    assert dram.split()[1:] == ["DRAM", "process", "1,234", "1,234,400", "75%", "0.700", "measured"]
    assert "PMEM_LIBPMEM" in works
    assert "PMEM_LIBPMEM" not in rates


def test_a_modelled_rate_names_its_devices_and_its_method() -> None:
    run = on_this_computer("DRAM_PMEM", 800.0)
    paced = [replace(metric, devices=OPTANE) for metric in run]
    paced[:2] = [replace(metric, kind="modelled") for metric in paced[:2]]
    predicted = [
        replace(paced[0], name="modelled_samples_per_s", value=790.0),
        replace(paced[1], name="modelled_lookups_per_s", value=79000.0),
    ]
    rows = result_rows([*run, *paced, *predicted])
    assert [row.kind_label for row in rows] == [
        *("measured", "modelled, paced", "modelled, predicted")
    ]
    assert [row.devices_label for row in rows[1:]] == ["ddr4-2666-x6 + optane-100-x6"] * 2
    text = tables(rows, width=120)
    for word in ("devices", "ddr4-2666-x6", "paced", "predicted", "790", "79,000"):
        assert word in text


def test_a_prediction_has_the_counts_of_its_run() -> None:
    run = on_this_computer("DRAM_PMEM", 800.0)
    predicted = replace(run[0], name="modelled_samples_per_s", kind="modelled", devices=OPTANE)
    row = result_rows([*run, predicted])[1]
    assert (row.hit_rate, row.auc) == (0.75, 0.7)
    assert row.lookups_per_s is None  # the run's own timing isn't the prediction's


def test_an_unproved_machine_is_marked_in_the_table() -> None:
    unproved = [
        replace(metric, facts={"unproved": ["mount.dax"]}) for metric in on_this_computer("DRAM", 1)
    ]
    assert "process, unproved" in tables(result_rows(unproved), width=120)


def test_a_row_has_the_kind_of_its_rates() -> None:
    (row,) = result_rows(metrics("DRAM", 1))
    assert row.kind == "functional-only"


def test_the_parts_of_a_step_are_collected_by_name() -> None:
    run = on_this_computer("DRAM", 1.0)
    parts = [
        replace(run[0], name=f"step_ms.{part}", value=ms, unit="ms")
        for part, ms in (("compute", 3.0), ("tier0", 1.5))
    ]
    (row,) = result_rows([*run, *parts])
    assert row.step_ms == {"compute": 3.0, "tier0": 1.5}
