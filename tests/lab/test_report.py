"""The table and the picture of results."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from test_metrics import METRIC

from pmemlab.scenarios.metrics import Metric
from pmemlab.scenarios.report import chart_svg, result_rows, table


def metrics(storage_type: str, rate: float, auc: float | None = 0.7) -> list[Metric]:
    of_run = replace(METRIC, storage_type=storage_type)
    return [
        replace(of_run, name="samples_per_s", value=rate),
        replace(of_run, name="lookups_per_s", value=rate * 1000),
        replace(of_run, name="auc", value=auc, kind="measured"),
        replace(of_run, name="hit_rate", value=0.75, kind="measured"),
    ]


def test_a_run_is_a_row_of_the_table() -> None:
    rows = result_rows(metrics("DRAM", 1234.4) + metrics("PMEM_LIBPMEM", 99, auc=None))
    lines = table(rows, width=120).splitlines()
    dram = next(line for line in lines if "DRAM" in line)
    assert dram.split() == [
        *("fsdax", "DRAM", "guest", "(tcg)"),
        *("1,234", "1,234,400", "75%", "0.700", "functional-only"),
    ]
    assert any("PMEM_LIBPMEM" in line and "undefined" in line for line in lines)
    assert all(len(line) <= 120 for line in lines)


def test_a_machine_that_was_not_proved_is_no_machine_of_that_topology() -> None:
    unproved = [
        replace(metric, machine="process", accelerator="none", facts={"unproved": ["mount.dax"]})
        for metric in metrics("DRAM", 1)
    ]
    assert "process, unproved" in table(result_rows(unproved), width=120)


def test_the_kind_in_a_row_is_that_of_its_rates() -> None:
    (row,) = result_rows(metrics("DRAM", 1))
    assert row.kind == "functional-only"


def test_the_picture_is_svg_with_a_bar_a_run() -> None:
    rows = result_rows(metrics("DRAM", 100) + metrics("PMEM_LIBPMEM", 50))
    bars = bars_of(chart_svg(rows))
    assert len(bars) == 2
    assert bars[0] == 2 * bars[1]


def test_rates_of_different_accelerators_share_no_scale() -> None:
    """The slow emulated run's bar is as long as the fast native one's: they can't be compared."""
    native = replace(metrics("DRAM", 1)[0], machine="process", accelerator="none", kind="measured")
    emulated = result_rows(metrics("DRAM", 2))
    rows = [
        *emulated,
        replace(emulated[0], machine=native.machine, accelerator="none", samples_per_s=9000.0),
    ]
    assert len(set(bars_of(chart_svg(rows)))) == 1


def bars_of(svg: str) -> list[float]:
    root = ElementTree.fromstring(svg)
    rects = root.findall("{http://www.w3.org/2000/svg}rect")
    return [float(rect.get("width", "")) for rect in rects[1:]]  # the first is the background
