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
        *("works", "works", "75%", "0.700", "functional-only"),
    ]
    libpmem = next(line for line in lines if "PMEM_LIBPMEM" in line)
    assert libpmem.split()[-2:] == ["-", "functional-only"]
    assert all(len(line) <= 120 for line in lines)


def test_only_rates_of_real_media_have_digits() -> None:
    measured = [replace(metric, kind="measured") for metric in metrics("DRAM", 1234.4)]
    assert "1,234,400" in table(result_rows(measured), width=120)
    emulated = result_rows(metrics("DRAM", 1234.4))
    assert "1,234" not in table(emulated, width=120)
    assert "1,234" not in chart_svg(emulated)
    assert bars_of(chart_svg(emulated)) == [0.0]


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
    rows = [
        replace(row, kind="measured")
        for row in result_rows(metrics("DRAM", 100) + metrics("PMEM_LIBPMEM", 50))
    ]
    bars = bars_of(chart_svg(rows))
    assert len(bars) == 2
    assert bars[1] > 0
    assert bars[0] == 2 * bars[1]


def test_rates_of_different_accelerators_share_no_scale() -> None:
    """The slow machine's bar is as long as the fast one's: they can't be compared."""
    (emulated,) = result_rows(metrics("DRAM", 2))
    in_guest = replace(emulated, accelerator="kvm", kind="measured")
    native = replace(in_guest, machine="process", accelerator="none", samples_per_s=9000.0)
    bars = bars_of(chart_svg([in_guest, native]))
    assert bars[0] == bars[1] > 0


def bars_of(svg: str) -> list[float]:
    root = ElementTree.fromstring(svg)
    rects = root.findall("{http://www.w3.org/2000/svg}rect")
    return [float(rect.get("width", "")) for rect in rects[1:]]  # the first is the background
