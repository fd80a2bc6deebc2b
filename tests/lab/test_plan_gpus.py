"""Plans with GPUs: accesses over the bus and in GPU memory, and the machines that have GPUs."""

from __future__ import annotations

import pytest

from embstore.devices import Access
from embstore.options import StorageType
from pmemlab.errors import PlanError
from pmemlab.model.planning.accesses import DeviceAccess, StepAccesses, step_accesses
from pmemlab.model.planning.cpu_work import CpuWork
from pmemlab.model.planning.hit_rates import LeastFrequent, LeastRecent
from pmemlab.model.planning.plan import Workload, make_plans
from pmemlab.model.planning.planned_tables import planned_table
from pmemlab.model.planning.popularity import BoundedZipf
from pmemlab.model.planning.prices import load_prices
from pmemlab.model.planning.row_bytes import RowShape
from pmemlab.model.planning.settings import Settings
from pmemlab.model.planning.tiers import PLANNED_TYPES, named_devices, placements

ROWS = 1_000_000
SHAPE = RowShape(dim=16, slots=1)
HBM_TYPES = [kind for kind in StorageType if kind.name.startswith("HBM")]
DEVICES = ["a100-80", "ddr4-2666-x6", "optane-100-x6", "nvme-p4510"]
CPU = CpuWork(100.0, 370.0, "given")


def accesses(
    kind: StorageType,
    *upper: int,
    training: bool = True,
    placement_class: type[LeastFrequent | LeastRecent] = LeastFrequent,
) -> StepAccesses:
    """Returns a step of a table whose upper tiers have these numbers of rows."""
    [placed] = placements([kind], named_devices(DEVICES), is_requested=True)
    return step_accesses(
        placed,
        placement_class(BoundedZipf(ROWS, 1.05), upper),
        SHAPE,
        batch_ids=8192,
        threads=4,
        training=training,
    )


def over_the_bus(step: StepAccesses) -> dict[Access, DeviceAccess]:
    return {each.access: each for each in step.accesses if each.device == "a100-80 bus"}


@pytest.mark.parametrize("training", [False, True])
def test_rows_of_a_table_that_is_all_in_hbm_never_cross_the_bus(training: bool) -> None:
    step = accesses(StorageType.HBM, training=training)
    assert step.moved_rows == 0
    assert {each.device for each in step.accesses} == {"a100-80"}
    assert any(each.access is Access.UPDATE for each in step.accesses) == training


@pytest.mark.parametrize("training", [False, True])
def test_by_lfu_a_missed_row_s_weights_go_to_the_gpu_and_its_gradient_comes_back(
    training: bool,
) -> None:
    step = accesses(StorageType.HBM_DRAM, ROWS // 10, training=training)
    crossing = over_the_bus(step)
    assert {*crossing} == ({Access.STORE, Access.LOAD} if training else {Access.STORE})
    for each in crossing.values():
        assert each.rate == pytest.approx(step.missed_rows)
        assert each.size_bytes == SHAPE.weights_bytes
    assert step.moved_rows == 0 < step.missed_rows <= 1 - step.hit_rates[0]  # once a batch


def test_by_lru_each_missed_row_crosses_the_bus_once_and_another_row_goes_back() -> None:
    step = accesses(StorageType.HBM_DRAM, ROWS // 10, placement_class=LeastRecent)
    crossing = over_the_bus(step)
    assert {*crossing} == {Access.STORE, Access.LOAD}
    for each in crossing.values():
        assert each.rate == pytest.approx(step.moved_rows)
        assert each.size_bytes == SHAPE.row_bytes + 48  # and its header
    misses = 1 - step.hit_rates[0]
    assert 0 < step.moved_rows <= misses  # a row is missed once a batch


def test_a_batch_reads_each_of_its_rows_once_and_writes_each_id() -> None:
    step = accesses(StorageType.HBM, training=False)
    read, written = (
        next(e for e in step.accesses if e.access is access and e.size_bytes == 64)
        for access in (Access.LOAD, Access.STORE)
    )
    assert written.rate == 1.0
    of_index = [e for e in step.accesses if e.access is Access.LOAD]
    assert len(of_index) == 2
    assert read.rate == pytest.approx(step.distinct_rows)
    assert step.distinct_rows < 1


def test_every_type_with_hbm_has_its_dram_tier_and_index_on_the_same_dram() -> None:
    assert set(HBM_TYPES) <= set(PLANNED_TYPES)
    pool = named_devices([*DEVICES, "ddr5-snc"])
    for placed in placements(HBM_TYPES, pool, is_requested=True):
        names = dict(zip(placed.kinds, placed.names, strict=True))
        for kind, name in names.items():
            if kind.value == "DRAM":
                assert placed.index_device.name == name


def test_plans_with_gpus_are_in_machines_that_have_the_gpus() -> None:
    table = planned_table("table", rows=10**8, dim=64, skew=1.05)
    workload = Workload((table,), lookups_per_s=1e6, batch_ids=65536)
    pool = named_devices(["h100-sxm", "ddr5-snc", "nvme-p4510"])
    plans = make_plans(workload, pool, load_prices(), CPU, Settings(), HBM_TYPES[:3]).plans
    rates = {plan.storage_type: plan.lookups_per_s for plan in plans}
    assert {plan.machine for plan in plans} <= {"p5.4xlarge", "p5.48xlarge"}
    assert rates["HBM"] > 2 * rates["HBM_DRAM"] > 2 * rates["HBM_DRAM_SSDHASH"]


def test_machines_that_are_rented_together_are_paid_for_together() -> None:
    pool = named_devices(["gb200", "ddr5-snc"])
    for rows, machines in ((10**8, 18), (2 * 10**10, 18), (3 * 10**10, 36)):
        table = planned_table("table", rows=rows, dim=64, skew=1.05)
        workload = Workload((table,), lookups_per_s=1e6, batch_ids=65536)
        [plan] = make_plans(workload, pool, load_prices(), CPU, Settings(), [StorageType.HBM]).plans
        assert (plan.machine, plan.machines) == ("gb200-4x", machines)
        assert plan.usd_per_month == pytest.approx(machines * 42 * 730)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["DRAM=h100-sxm"], "DRAM=h100-sxm: a tier of HBM is on a GPU, and no other is"),
        (["HBM=ddr5-snc"], "HBM=ddr5-snc: a tier of HBM is on a GPU, .* ddr5-snc is no GPU"),
        (["L3=h100-sxm"], "there are HBM, DRAM, PMEM and SSD"),
    ],
)
def test_only_an_hbm_tier_may_be_on_a_gpu(names: list[str], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        named_devices(names)


def test_hbm_without_a_gpu_names_what_is_missing() -> None:
    with pytest.raises(PlanError, match="HBM_DRAM needs a GPU for its HBM tier"):
        list(placements([StorageType.HBM_DRAM], named_devices(["ddr5-snc"]), is_requested=True))
