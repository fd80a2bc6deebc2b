"""The section on tables in GPUs' memory: other engines' published rates, beside the plan's model.

Each figure is one call on a whole batch. Its reads and writes are timed by the GPU's device file,
as in `pmemlab model plan`, and nothing is fitted. Host memory takes no time here: the bus is
slower, and the hosts' memories have no device files.
"""

from __future__ import annotations

from collections.abc import Sequence

from embstore.devices import Access
from embstore.options import StorageType
from pmemlab.model.devices import load_device
from pmemlab.model.fidelity.rows import Row, Section
from pmemlab.model.planning.accesses import (
    INDEX_LINE_BYTES,
    DeviceAccess,
    StepAccesses,
    step_accesses,
)
from pmemlab.model.planning.hit_rates import LeastFrequent
from pmemlab.model.planning.popularity import BoundedZipf
from pmemlab.model.planning.row_bytes import RowShape
from pmemlab.model.planning.step_time import lookup_time
from pmemlab.model.planning.tiers import named_devices, placements

__all__ = ["gpu_section"]

_GIGA = 1 << 30  # HierarchicalKV's tables say billions, but its program divides by 1024 ** 3
_HKV_2022 = "HierarchicalKV 2022-10-14"
_HKV_2024 = "HierarchicalKV 2024-05-22"
_HKV_KEYS = 1 << 20
_UNIT = "M ids/s"

_DYNAMICEMB = "dynamicemb"
_DYNAMICEMB_IDS = 1_048_570
_DYNAMICEMB_TABLES = 10
_DYNAMICEMB_ROWS = 1_677_721  # per table
_NVE_IDS = 256 * 1024
_SKEW = 1.05


def gpu_section() -> Section:
    """Returns the section: rates of look-ups and of training, with all or some rows in a GPU's
    memory.
    """
    rates = (*_hierarchical_kv(), *_dynamicemb(), *_nve())
    reached = [row.published / row.predicted for row in rates]
    return Section(
        "Tables in the memory of GPUs",
        "Rates that other engines published, beside the rates that the bandwidths of memory and "
        "bus and kernel launches allow. Sources, all read at these commits: the README of "
        "NVIDIA-Merlin/HierarchicalKV at 02bfdde (A100 SXM, 80 GB; all keys exist) and at ae24eec "
        "(A100 PCIe, 80 GB; 60 % of the keys that its program looks up exist); "
        "corelib/dynamicemb/benchmark/benchmark_results.json of NVIDIA/recsys-examples at 43465ae "
        "(H100 SXM; 10 tables of 1.68 M rows); docs/benchmarks.md of NVIDIA/nv-embedding-cache at "
        "318a481 (GB200). Nothing is fitted, and a prediction is an upper bound, so no aim is set; "
        "an error shows how far those engines are from the bound.",
        (*rates, _distinct_ids()),
        (
            "HierarchicalKV's tables say billions, but its program divides by 2^30; the rows here "
            "count ids. Its PCIe card's memory is 5 % slower than that of the SXM module of "
            "a100-80. In its hybrid mode a value's place in the table, not its frequency, decides "
            "whether it lies in GPU or host memory, and each value is read where it lies.",
            f"The bounds are too loose to predict a rate: these engines reach {min(reached):.0%} "
            f"to {max(reached):.0%} of them. Kernel launches on H100 and GB200 take no time here, "
            "since none was published.",
            "Left out: dynamicemb's runs with a part of the rows in HBM. With a cache, its size "
            "follows from the batches; without one, nothing says which rows lie there.",
        ),
    )


def _hierarchical_kv() -> list[Row]:
    rows = [
        Row(
            f"{_HKV_2022}, find, dim {dim}, all in HBM",
            rate * _GIGA / 1e6,
            _find(dim, found_share=1.0, host_share=0.0),
            _UNIT,
        )
        for dim, rate in ((16, 1.564), (64, 0.915), (128, 0.613))
    ]
    rows += [
        Row(
            f"{_HKV_2024}, find, dim {dim}, all in HBM",
            rate * _GIGA / 1e6,
            _find(dim, found_share=0.6, host_share=0.0),
            _UNIT,
        )
        for dim, rate in ((8, 2.470), (32, 2.272), (64, 1.982))
    ]
    for name, found, of_host, rate in (
        (_HKV_2022, 1.0, 16 / 32, 0.103),
        (_HKV_2022, 1.0, 200 / 256, 0.040),
        (_HKV_2024, 0.6, 16 / 32, 0.124),
        (_HKV_2024, 0.6, 96 / 128, 0.069),
    ):
        rows.append(
            Row(
                f"{name}, find, dim 64, {of_host:.0%} of the values in host memory",
                rate * _GIGA / 1e6,
                _find(64, found, of_host),
                _UNIT,
            )
        )
    return rows


def _dynamicemb() -> list[Row]:
    zipf = BoundedZipf(_DYNAMICEMB_ROWS, _SKEW)
    rows = []
    for optimizer, slots, train_ms, eval_ms in (
        ("SGD", 0, 1.9234, 0.6400),
        ("Adam", 2, 2.1853, 0.6448),
    ):
        for what, ms in (("look-up", eval_ms), ("look-up and update", train_ms)):
            rows.append(
                Row(
                    f"{_DYNAMICEMB}, {what}, {optimizer}, dim 128, all in HBM",
                    _DYNAMICEMB_IDS / ms / 1e3,
                    _engine_rate(
                        "h100-sxm",
                        LeastFrequent(zipf, ()),
                        RowShape(128, slots),
                        _DYNAMICEMB_IDS // _DYNAMICEMB_TABLES,
                        training=what != "look-up",
                    ),
                    _UNIT,
                )
            )
    return rows


def _distinct_ids() -> Row:
    step = _step(
        "h100-sxm",
        LeastFrequent(BoundedZipf(_DYNAMICEMB_ROWS, _SKEW), ()),
        RowShape(128, 0),
        _DYNAMICEMB_IDS // _DYNAMICEMB_TABLES,
    )
    return Row(
        f"{_DYNAMICEMB}, distinct ids of a batch",
        350_280.02,
        step.distinct_rows * _DYNAMICEMB_IDS,
        "ids",
        note="its ids are drawn from a continuous power law, the model's from a Zipf distribution",
    )


def _nve() -> list[Row]:
    shape = RowShape(128, 0)
    whole, larger = 268_435_456, 536_870_912
    return [
        Row(
            "NVE, look-up, dim 128, all in HBM",
            2910.36,
            _engine_rate("gb200", LeastFrequent(BoundedZipf(whole, _SKEW), ()), shape, _NVE_IDS),
            _UNIT,
        ),
        Row(
            "NVE, look-up, dim 128, 10 % in HBM",
            432.31,
            _engine_rate(
                "gb200",
                LeastFrequent(BoundedZipf(larger, _SKEW), (larger // 10,)),
                shape,
                _NVE_IDS,
            ),
            _UNIT,
            note="frequencies are settled here, so no row moves; NVE's cache inserts each miss",
        ),
    ]


def _engine_rate(
    gpu: str, placement: LeastFrequent, shape: RowShape, batch_ids: int, training: bool = False
) -> float:
    """Returns millions of ids/s of a tier of HBM, with DRAM below if the placement has two
    tiers.
    """
    step = _step(gpu, placement, shape, batch_ids, training)
    return _rate(gpu, step.accesses, batch_ids)


def _step(
    gpu: str, placement: LeastFrequent, shape: RowShape, batch_ids: int, training: bool = False
) -> StepAccesses:
    kind = StorageType.HBM if len(placement.tier_rows) == 1 else StorageType.HBM_DRAM
    [placed] = placements([kind], named_devices([gpu, "ddr5-snc"]), is_requested=True)
    return step_accesses(
        placed, placement, shape, batch_ids=batch_ids, threads=1, training=training
    )


def _find(dim: int, found_share: float, host_share: float) -> float:
    """Returns millions of keys/s of HierarchicalKV's find. found_share: share of keys that exist;
    host_share: the share of these whose values the GPU reads over the bus.
    """
    gpu = "a100-80"
    row_bytes = 4 * dim
    accesses = [
        DeviceAccess(0, gpu, Access.LOAD, INDEX_LINE_BYTES, 1.0),
        DeviceAccess(0, gpu, Access.STORE, row_bytes, found_share),
    ]
    if host_share < 1:
        accesses.append(
            DeviceAccess(0, gpu, Access.LOAD, row_bytes, found_share * (1 - host_share))
        )
    if host_share > 0:
        accesses.append(
            DeviceAccess(0, f"{gpu} bus", Access.STORE, row_bytes, found_share * host_share)
        )
    return _rate(gpu, accesses, _HKV_KEYS)


def _rate(gpu: str, accesses: Sequence[DeviceAccess], batch_ids: int) -> float:
    device = load_device(gpu)
    assert device.bus is not None
    devices = {device.name: device, device.bus.name: device.bus}
    timed = [each for each in accesses if each.device in devices]
    return 1e3 / lookup_time(0.0, timed, devices, {}, threads=1, batch_ids=batch_ids).total_ns
