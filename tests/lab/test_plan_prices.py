"""Price files: the contents of the lab's own file, and the errors for bad files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pmemlab.errors import PriceFileError
from pmemlab.model.devices import device_names, load_device
from pmemlab.model.planning.prices import Prices, load_prices

MACHINE: dict[str, Any] = {
    "name": "m",
    "cpu_threads": 8,
    "usd_per_hour": 1.5,
    "holds": [{"devices": ["dram"], "capacity_gib": 64}],
    "source": {"title": "a list", "url": "https://example.org/", "date": "@2026-01-02"},
}


def _written(path: Path, document: object) -> Path:
    # A date is written as a YAML date, not as a string.
    path.write_text(re.sub(r"'@([0-9-]+)'", r"\1", yaml.safe_dump(document)))
    return path


def _prices(path: Path, **changes: object) -> Prices:
    machine = {k: v for k, v in {**MACHINE, **changes}.items() if v is not None}
    return load_prices(_written(path / "p.yaml", {"hours_a_month": 730, "machines": [machine]}))


def test_the_paper_s_machines_cost_what_the_paper_says() -> None:
    prices = load_prices()
    dram, pmem = (prices.machine(f"ecs.{name}.13xlarge") for name in ("r6e", "re6p"))
    assert (dram.usd_per_hour, dram.cpu_threads, pmem.usd_per_hour) == (3.04, 52, 3.80)
    assert [h.capacity_bytes for h in dram.holds] == [384 << 30]
    assert [h.capacity_bytes for h in pmem.holds] == [192 << 30, 756 << 30]
    # The paper's table of costs: two DRAM machines for 5.75 hours, one PMem machine for 5.33.
    assert 2 * dram.usd_per_hour * 5.75 == pytest.approx(34.9, abs=0.1)
    assert pmem.usd_per_hour * 5.33 == pytest.approx(20.3, abs=0.1)


def test_every_machine_in_the_lab_s_prices_has_a_source_and_known_devices() -> None:
    for machine in load_prices().machines:
        assert machine.source.title
        assert machine.source.url.startswith("http")
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", machine.source.date)
        for holding in machine.holds:
            for name in holding.devices:
                assert name in device_names()
                is_gpu = name in ("a100-80", "gb200", "h100-sxm")
                kind = "block" if "nvme" in name else "gpu" if is_gpu else "memory"
                assert load_device(name).kind == kind


def test_memory_mode_is_the_same_machine_with_pmem_as_its_only_memory() -> None:
    prices = load_prices()
    plain = prices.machine("ecs.re6p.13xlarge")
    cached = prices.machine("ecs.re6p.13xlarge, memory mode")
    assert cached.usd_per_hour == plain.usd_per_hour
    assert cached.holding_of("ddr4-2666-x6") is None
    holding = cached.holding_of("optane-100-x6-memory-mode")
    assert holding is not None
    assert holding.capacity_bytes == 756 << 30


def test_sizes_are_binary_or_decimal_according_to_the_field(tmp_path: Path) -> None:
    holds = [
        {"devices": ["dram", "ddr"], "capacity_gib": 1.5},
        {"devices": ["disk"], "capacity_gb": 7500, "units": 2},
    ]
    machine = _prices(tmp_path, holds=holds).machine("m")
    assert [holding.capacity_bytes for holding in machine.holds] == [3 << 29, 7_500_000_000_000]
    disk = machine.holding_of("disk")
    assert disk is not None
    assert disk.units == 2
    assert machine.source.date == "2026-01-02"


HOLDS = MACHINE["holds"][0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": None}, "name: is missing"),
        ({"cpu_threads": None}, "cpu_threads: is missing"),
        ({"cpu_threads": 1.5}, "cpu_threads: must be a whole number"),
        ({"usd_per_hour": None}, "usd_per_hour: is missing"),
        ({"usd_per_hour": -1}, "usd_per_hour: must be a number above 0"),
        ({"usd_per_hour": "cheap"}, "usd_per_hour: must be a number above 0"),
        ({"holds": None}, "holds: is missing"),
        ({"holds": [{**HOLDS, "devices": []}]}, r"holds\[0\].devices: must be a list of one"),
        ({"holds": [{"devices": ["dram"]}]}, r"holds\[0\].capacity_gib: give either"),
        ({"holds": [{**HOLDS, "capacity_gb": 1}]}, r"holds\[0\].capacity_gib: give either"),
        ({"holds": [{**HOLDS, "capacity_gib": 0}]}, r"holds\[0\].capacity_gib: must be a number"),
        ({"holds": [{**HOLDS, "capacity_gib": 1e-10}]}, r"holds\[0\].capacity_gib: must come to"),
        ({"holds": [{"devices": ["d"], "capacity_gb": 1e20}]}, "holds.*capacity_gb: must come to"),
        ({"holds": [{**HOLDS, "units": 0}]}, r"holds\[0\].units: must be a number of at least"),
        (
            {"holds": [{**HOLDS, "units": 1e-7}]},
            r"holds\[0\].units: must be .* 1/64",
        ),
        ({"holds": [{**HOLDS, "cost": 1}]}, r"holds\[0\].cost: is no field"),
        ({"holds": [HOLDS, HOLDS]}, r"holds\[1\].devices: dram is held twice"),
        ({"memory_mode": {"devices": ["x"]}}, "memory_mode.capacity_gib: give either"),
        ({"source": None}, "source: is missing"),
        ({"source": {**MACHINE["source"], "url": None}}, "source.url: is missing"),
        ({"source": {**MACHINE["source"], "date": "lately"}}, "source.date: must be a day"),
        ({"source": {**MACHINE["source"], "date": 20260102}}, "source.date: must be a day"),
        ({"price": 3}, "price: is no field"),
    ],
)
def test_errors_name_file_and_field(tmp_path: Path, changes: dict[str, object], field: str) -> None:
    with pytest.raises(PriceFileError, match=rf"p\.yaml:\d+: machines\[0\]\.{field}"):
        _prices(tmp_path, **changes)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"machines": []}, "hours_a_month: is missing"),
        ({"hours_a_month": 730}, "machines: is missing"),
        ({"hours_a_month": 0, "machines": [MACHINE]}, "hours_a_month: must be a number above 0"),
        ({"hours_a_month": 730, "machines": [MACHINE] * 2}, "there is a machine m already"),
        ({"hours_a_month": 730, "machines": [MACHINE], "cpu": 1}, "cpu: is no field"),
        ([1], "must be a mapping"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, document: object, problem: str) -> None:
    with pytest.raises(PriceFileError, match=rf"p\.yaml:\d+: .*{problem}"):
        load_prices(_written(tmp_path / "p.yaml", document))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceFileError, match=r"none\.yaml: can't be read"):
        load_prices(tmp_path / "none.yaml")


def test_machines_are_selected_by_name(tmp_path: Path) -> None:
    prices = load_prices()
    assert prices.restricted_to(None) is prices
    assert [m.name for m in prices.restricted_to(["r5.24xlarge"]).machines] == ["r5.24xlarge"]
    with pytest.raises(PriceFileError, match=r"there is no tiny; there are m$"):
        _prices(tmp_path).restricted_to(["tiny"])
