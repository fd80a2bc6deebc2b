"""The modelled rates of scenarios on emulated machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_metrics import METRIC

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.errors import LabError
from pmemlab.model.devices import device_names
from pmemlab.scenarios import modelled_rates
from pmemlab.scenarios.document import Expectations, Rated, Scenario, Storage, Workload
from pmemlab.scenarios.modelled_rates import ModelledRate, RateModel, devices_of
from pmemlab.scenarios.reading import load_scenario
from pmemlab.scenarios.report import tables
from pmemlab.scenarios.rows import result_rows
from pmemlab.scenarios.run_metrics import rate_metrics
from pmemlab.topology import StandsFor, load_topology, topology_names

CLONE = Path(__file__).parents[2]
RATED = Rated(4, {"rows": 40_000, "steps": 6, "batch-size": 4096, "cold-lookups": 0})


def scenario(name: str, topology: str, sizes: tuple[int, ...] = (), **changed: Any) -> Scenario:
    return Scenario(
        path=Path(f"{name}.yaml"),
        name=name,
        summary="",
        topology=load_topology(topology),
        storage_types=(),
        expect=Expectations(None),
        storage=Storage(None, sizes),
        workload=Workload("tables", {"rows": 10_000}, changed.pop("rated", RATED)),
        **changed,
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """Replaces runs on this computer by a fake, and returns the (storage type, sizes) of each. The
    fake's time per step is proportional to the length of the devices' names."""
    ran: list[tuple[str, tuple[int, ...]]] = []

    def run_here(run: Any, _scenario: object, placements: Any) -> dict[tuple[str, ...], Any]:
        ran.append((run.storage_type, run.sizes))
        return {
            devices: modelled_rates._Step(8e-3, len("".join(devices)), 0.0, 0.0)
            for devices in placements
        }

    monkeypatch.setattr(modelled_rates, "_run_on_this_computer", run_here)
    return ran


def ignore_step(_step: str) -> None:
    """Ignores a progress message."""


def test_the_lab_s_own_machines_stand_for_existing_devices() -> None:
    for name in topology_names():
        stands_for = load_topology(name).stands_for
        assert stands_for.dram, name
        names = {*vars(stands_for).values()} - {""}
        assert names <= set(device_names()), name


def test_every_scenario_of_the_lab_has_devices_for_its_tiers_and_a_rated_workload() -> None:
    for path in sorted((CLONE / "scenarios").glob("*.yaml")):
        document = load_scenario(path)
        if document.workload.command:
            continue  # a user's own program isn't rated
        for storage_type in document.storage_types:
            assert devices_of(storage_type, document.topology.stands_for) is not None, path
        assert document.workload.rated is not None, path


@pytest.mark.parametrize(
    ("storage_type", "devices"),
    [
        ("DRAM", ("m",)),
        ("PMEM_MEMKIND", ("p",)),
        ("DRAM_PMEM_LEVELDB", ("m", "p", "s")),
        ("DRAM_SSDHASH", ("m", "s")),
        ("HBM", ("g",)),
        ("HBM_DRAM_PMEM_SSDHASH", ("g", "m", "p", "s")),
    ],
)
def test_each_tier_is_on_the_device_of_its_kind(
    storage_type: str, devices: tuple[str, ...]
) -> None:
    whole = StandsFor(dram="d", pmem="p", ssd="s", gpu="g", memory="m")
    assert devices_of(storage_type, whole) == devices
    assert devices_of(storage_type, replace(whole, memory="")) == tuple(
        "d" if device == "m" else device for device in devices
    )
    assert devices_of("DRAM_SSDHASH", replace(whole, ssd="")) is None
    assert devices_of("HBM_DRAM", replace(whole, gpu="")) is None


def test_a_run_that_several_scenarios_need_is_made_once(runs: list[Any]) -> None:
    selected = [
        (scenario("nvme", "nvme", (1000,)), "DRAM_SSDHASH"),
        (scenario("sata", "sata", (1000,)), "DRAM_SSDHASH"),
        (scenario("dram", "dram"), "DRAM"),
        (scenario("larger", "nvme", (2000,)), "DRAM_SSDHASH"),
    ]
    model = RateModel(selected)
    assert runs == []
    for each, storage_type in selected:
        assert model.rate(each, storage_type, ignore_step) is not None
    assert runs == [("DRAM_SSDHASH", (4000,)), ("DRAM", ()), ("DRAM_SSDHASH", (8000,))]


def test_a_storage_type_of_one_tier_shares_its_run_with_dram(runs: list[Any]) -> None:
    each = scenario("fsdax", "fsdax", (1000,))
    rate = RateModel([(each, "PMEM_LIBPMEM")]).rate(each, "PMEM_LIBPMEM", ignore_step)
    assert rate is not None
    assert rate.devices == ("optane-100-x6",)
    assert rate.dram_ratio == len("ddr4-2666-x6") / len("optane-100-x6")
    assert runs == [("DRAM", ())]


def test_storage_types_that_touch_the_same_rows_share_a_run(runs: list[Any]) -> None:
    selected = [
        (scenario("fsdax", "fsdax"), "PMEM_LIBPMEM"),
        (scenario("kmem-dax", "kmem-dax"), "PMEM_MEMKIND"),
        (scenario("nvme", "nvme", (1000,)), "DRAM_SSDHASH"),
        (scenario("alone", "nvme", (1000,)), "SSDHASH"),
        (scenario("nvme", "nvme", (1000,)), "DRAM_LEVELDB"),
        (scenario("alone", "nvme", (1000,)), "LEVELDB"),
    ]
    model = RateModel(selected)
    rates = [model.rate(each, storage_type, ignore_step) for each, storage_type in selected]
    devices = [rate.devices for rate in rates if rate is not None]
    assert devices == [("optane-100-x6",)] * 2 + [("ddr4-2666-x6", "nvme-p4510")] * 4
    assert sorted(runs) == [("DRAM", ()), ("DRAM_LEVELDB", (4000,)), ("DRAM_SSDHASH", (4000,))]


def test_storage_types_that_share_a_run_have_equivalent_tiers() -> None:
    def tiers(storage_type: StorageType) -> list[TierKind]:
        """Returns the tiers with PMem as DRAM. All memories treat rows alike; disk tiers don't."""
        memories = (TierKind.PMEM_LIBPMEM, TierKind.PMEM_MEMKIND)
        kinds = TIER_KINDS[storage_type]
        return [TierKind.DRAM if kind in memories else kind for kind in kinds]

    for storage_type, runs_as in modelled_rates._RUNS_AS.items():
        assert tiers(storage_type) == tiers(runs_as), storage_type


def test_rows_on_a_gpu_are_compared_with_a_separate_run_in_dram(runs: list[Any]) -> None:
    each = scenario("hbm", "dram", (1000,))
    rate = RateModel([(each, "HBM")]).rate(each, "HBM", ignore_step)
    assert rate is not None
    assert rate.devices == ("a100-80",)
    assert rate.dram_ratio == len("ddr4-2666-x6") / len("a100-80")
    assert runs == [("HBM", (4000,)), ("DRAM", ())]


def test_this_computer_s_own_computing_time_does_not_change_ratios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing = {"DRAM": 900.0, "DRAM_SSDHASH": 6.0, "DRAM_PMEM": 40.0}  # ms a step
    tiers = {"DRAM": 2.0, "DRAM_SSDHASH": 10.0, "DRAM_PMEM": 4.0}

    def run_here(run: Any, _scenario: object, placements: Any) -> dict[tuple[str, ...], Any]:
        step = {
            "samples_per_s": 16e3 / (tiers[run.storage_type] + computing[run.storage_type]),
            "step_ms": {"tier0": tiers[run.storage_type], "compute": computing[run.storage_type]},
        }
        return {devices: modelled_rates._step(step) for devices in placements}

    monkeypatch.setattr(modelled_rates, "_run_on_this_computer", run_here)
    selected = [
        (scenario("nvme", "nvme"), "DRAM_SSDHASH"),
        (scenario("fsdax", "fsdax"), "DRAM_PMEM"),
        (scenario("dram", "dram"), "DRAM"),
    ]
    model = RateModel(selected)
    rates = [model.rate(each, storage_type, ignore_step) for each, storage_type in selected]
    assert [rate and rate.samples_per_s for rate in rates] == [1000, 1600, 2000]
    assert rates[0] is not None
    assert rates[0].dram_ratio == 0.5


def test_a_step_waits_for_the_thread_that_moves_rows_if_that_takes_longer() -> None:
    step = {"samples_per_s": 100.0, "step_ms": {"tier0": 2.0, "compute": 3.0, "moves": 5.0}}
    predicted = modelled_rates._step(step)
    assert predicted.samples_per_s(3.0) == 100
    assert predicted.samples_per_s(1.0) == 100
    assert predicted.samples_per_s(18.0) == 50


def test_without_devices_or_a_rated_workload_there_is_no_rate(runs: list[Any]) -> None:
    for each in (
        scenario("fsdax", "fsdax", rated=None),
        replace(
            scenario("fsdax", "fsdax"),
            topology=replace(load_topology("fsdax"), stands_for=StandsFor()),
        ),
    ):
        assert RateModel([(each, "DRAM_PMEM")]).rate(each, "DRAM_PMEM", ignore_step) is None
    assert runs == []


@pytest.mark.long
def test_rows_on_a_gpu_are_rated_without_one() -> None:
    mixed_scenario = scenario("hbm-dram", "dram", (64 << 10, 4 << 20))
    whole_scenario = scenario("hbm", "dram", (4 << 20,))
    model = RateModel([(mixed_scenario, "HBM_DRAM"), (whole_scenario, "HBM")])
    mixed = model.rate(mixed_scenario, "HBM_DRAM", ignore_step)
    all_there = model.rate(whole_scenario, "HBM", ignore_step)
    assert mixed is not None
    assert all_there is not None
    assert mixed.devices == ("a100-80", "ddr4-2666-x6")
    assert mixed.samples_per_s < all_there.samples_per_s


@pytest.mark.parametrize("storage_type", ["DRAM", "DRAM_SSDHASH"])
def test_a_rate_comes_from_a_run_on_this_computer(storage_type: str) -> None:
    each = scenario("nvme", "nvme", (64 << 10,))
    steps: list[str] = []
    rate = RateModel([(each, storage_type)]).rate(each, storage_type, steps.append)
    assert rate is not None
    assert rate.samples_per_s > 0
    assert steps[0] == f"modelling rates: tables on {storage_type}"
    if storage_type == "DRAM":
        assert rate.dram_ratio == 1
    else:
        assert rate.devices == ("ddr4-2666-x6", "nvme-p4510")
        assert rate.dram_ratio < 1  # most rows are on a disk


def test_a_failed_run_is_an_error_with_its_reason() -> None:
    each = scenario("nvme", "nvme", rated=Rated(1, {"rows": -1}))
    with pytest.raises(LabError, match=r"tables on DRAM, on this computer: .*-1 is not above 0"):
        RateModel([(each, "DRAM")]).rate(each, "DRAM", ignore_step)


def test_a_line_has_devices_rate_ratio_and_price() -> None:
    each = scenario("fsdax", "fsdax")
    worked = [
        replace(METRIC, name="samples_per_s", value=231.0, scenario="fsdax"),
        replace(METRIC, name="auc", value=0.7, kind="measured", scenario="fsdax"),
    ]

    def line(storage_type: str, rate: ModelledRate) -> list[str]:
        metrics = [replace(metric, storage_type=storage_type) for metric in worked]
        rows = result_rows([*metrics, *rate_metrics(each, storage_type, rate, "abc")])
        text = tables(rows, width=150)
        assert text.startswith("works; samples/s are modelled")
        assert "231" not in text
        (found,) = (line for line in text.splitlines() if line.startswith("fsdax"))
        return found.split()

    paid = line("PMEM_LIBPMEM", ModelledRate(("optane-100-x6",), 123456.0, 0.856))
    assert paid[-6:] == ["optane-100-x6", "123,456", "0.86", "3.80", "-", "0.700"]
    # No price of a machine with CXL memory is known.
    assert line("PMEM_LIBPMEM", ModelledRate(("cxl-asic",), 10.0, 0.5))[-3] == "-"


def test_a_run_without_a_rate_has_dashes_in_a_table_with_rates() -> None:
    each = scenario("fsdax", "fsdax")
    other = replace(METRIC, name="samples_per_s", scenario="other")
    rows = result_rows(
        [
            other,
            replace(other, scenario="fsdax", storage_type="DRAM"),
            *rate_metrics(each, "DRAM", ModelledRate(("ddr4-2666-x6",), 5.0, 1.0), ""),
        ]
    )
    lines = tables(rows, width=150).splitlines()
    (without,) = (line for line in lines if line.startswith("other"))
    assert without.split()[-6:] == ["-"] * 6
