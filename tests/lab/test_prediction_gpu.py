"""The predicted time of a run whose first tier is on a GPU."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import embstore as es
from embstore.devices import Access
from embstore.options import TierKind
from pmemlab.errors import LabError
from pmemlab.model.devices import load_device
from pmemlab.model.devices import model as device_model
from pmemlab.model.devices.gpu_device import GpuDevice
from pmemlab.model.prediction import RanIn, caches_before, predict_run
from pmemlab.model.prediction.gpu_tier import KERNELS, gpu_times_ns
from pmemlab.workloads.placements import load_placement
from pmemlab.workloads.rated_storage import with_dram_for_hbm

DIM = 16
ROW_BYTES = 2 * 4 * DIM  # with Adagrad's slot
IDS = 4096
STEPS = 10


class Recorded(NamedTuple):
    """A recorded run, with the bytes of rows that it moved and the rows that it trained."""

    phases: np.ndarray
    ran: RanIn
    moved_bytes: int
    trained_rows: int

    def on(self, gpu: GpuDevice) -> float:
        """Returns the seconds that the GPU takes, summed over all threads."""
        first = self.phases[self.phases["tier"] == 0]
        return float(gpu_times_ns(first, 0, gpu, self.ran.thread).sum()) / 1e9


def gpu(folder: Path, bus_gb_per_s: float = 32, launch_us: float = 0.000001) -> GpuDevice:
    """Returns an A100 with another bus and launch time, loaded from a file in the folder."""
    whole = (Path(device_model.__file__).parent / "a100-80.yaml").read_text(encoding="utf-8")
    own = folder / f"gpu-{bus_gb_per_s}-{launch_us}.yaml"
    own.write_text(
        whole.replace("value: 32,", f"value: {bus_gb_per_s},").replace(
            "value: 2.7,", f"value: {launch_us:f},"
        ),
        encoding="utf-8",
    )
    device = load_device(own)
    assert isinstance(device, GpuDevice)
    return device


def recorded(kind: es.StorageType, first_tier_rows: int) -> Recorded:
    """Trains a table with DRAM in place of HBM, and returns the recording."""
    storage = es.StorageOption(kind, None, [first_tier_rows * ROW_BYTES])
    random = np.random.default_rng(1)
    batches = [np.minimum(random.zipf(1.3, IDS), 20_000) for _ in range(STEPS)]
    with es.get_embedding_variable(
        "table",
        DIM,
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(with_dram_for_hbm(storage)),
    ) as variable:
        keys = np.arange(20_001)
        variable.apply_gradients(keys, np.ones((keys.size, DIM), np.float32))
        variable.drain()
        before = variable.stats()
        with es.record_accesses(variable, caches=[es.Caches(0)]) as recording:
            began = time.perf_counter()
            for ids in batches:
                variable.lookup(ids, train=True)
                variable.apply_gradients(ids, np.ones((IDS, DIM), np.float32))
            seconds = time.perf_counter() - began
            variable.drain()
        after = variable.stats()
    moved = sum(after[name] - before[name] for name in ("promotions", "demotions"))
    return Recorded(
        recording.phases,
        RanIn(seconds, threading.get_native_id()),
        moved * ROW_BYTES,
        sum(np.unique(ids).size for ids in batches),
    )


@pytest.fixture(scope="module")
def all_in_hbm() -> Recorded:
    return recorded(es.StorageType.HBM, 30_000)


@pytest.fixture(scope="module")
def a_tenth_in_hbm() -> Recorded:
    return recorded(es.StorageType.HBM_DRAM, 2_000)


def test_rows_of_a_table_that_is_all_in_hbm_never_cross_the_bus(
    tmp_path: Path, all_in_hbm: Recorded
) -> None:
    assert all_in_hbm.moved_bytes == 0
    slow_bus = gpu(tmp_path, bus_gb_per_s=0.001)
    assert all_in_hbm.on(slow_bus) == all_in_hbm.on(gpu(tmp_path))


def test_each_id_reads_its_row_and_each_row_is_updated_once_per_batch(
    tmp_path: Path, all_in_hbm: Recorded
) -> None:
    beside_a_row = 16  # its frequency and version
    touched = STEPS * IDS * 4 * DIM + 2 * all_in_hbm.trained_rows * (ROW_BYTES + beside_a_row)
    assert all_in_hbm.on(gpu(tmp_path)) == pytest.approx(touched / 2039e9, rel=1e-3)


def test_each_promoted_or_demoted_row_crosses_the_bus_once(
    tmp_path: Path, a_tenth_in_hbm: Recorded
) -> None:
    assert a_tenth_in_hbm.moved_bytes > 100 * ROW_BYTES
    slower = a_tenth_in_hbm.on(gpu(tmp_path, bus_gb_per_s=1)) - a_tenth_in_hbm.on(gpu(tmp_path))
    crossed = slower / (1 / 1e9 - 1 / 32e9)
    # A row that was read for its demotion may be used again meanwhile, and then stays.
    assert 0.99 <= crossed / a_tenth_in_hbm.moved_bytes < 1.2


def test_a_batch_takes_at_least_the_launches_of_its_kernels(
    tmp_path: Path, all_in_hbm: Recorded
) -> None:
    launches = STEPS * (KERNELS[Access.LOAD] + KERNELS[Access.UPDATE])
    predicted = all_in_hbm.on(gpu(tmp_path, launch_us=1000))
    assert predicted == pytest.approx(launches * 1e-3, rel=1e-3)


def test_the_cpu_time_for_rows_of_a_gpu_tier_does_not_count(
    tmp_path: Path, all_in_hbm: Recorded
) -> None:
    device = gpu(tmp_path)
    phases = all_in_hbm.phases.copy()
    phases["elapsed_ns"] //= 2
    assert all_in_hbm._replace(phases=phases).on(device) == all_in_hbm.on(device)
    there = predict_run(all_in_hbm.phases, caches_before([[device]]), [device], all_in_hbm.ran)
    assert there.seconds < all_in_hbm.ran.seconds


@pytest.mark.parametrize("kind", [kind for kind in es.StorageType if kind.name.startswith("HBM")])
def test_a_rated_run_replaces_hbm_by_dram_and_changes_nothing_else(
    tmp_path: Path, kind: es.StorageType
) -> None:
    storage = es.StorageOption(kind, str(tmp_path) if "_" in kind.name[4:] else None, [1 << 20])
    tiers, rated = storage.tiers(), with_dram_for_hbm(storage).tiers()
    assert tiers[0].kind is TierKind.HBM
    assert rated[0].kind is TierKind.DRAM
    assert rated[0].size_bytes == tiers[0].size_bytes
    assert rated[1:] == tiers[1:]


def test_a_storage_type_without_a_gpu_is_rated_unchanged() -> None:
    storage = es.StorageOption(es.StorageType.DRAM)
    assert with_dram_for_hbm(storage) is storage


def test_only_an_hbm_tier_of_a_rates_only_run_may_be_on_a_gpu() -> None:
    def refusal(names: str, kind: str, option: str = "--predict", rates_only: bool = True) -> str:
        with pytest.raises(LabError) as refused:
            load_placement(option, names, kind, direct_io=True, rates_only=rates_only)
        return str(refused.value)

    named = load_placement("--predict", "gb200,ddr5-snc", "HBM_DRAM", True, rates_only=True)
    assert [device and device.name for device in named] == ["gb200", "ddr5-snc"]
    assert "h100-sxm is a GPU" in refusal("h100-sxm", "DRAM")
    assert "ddr5-snc is no GPU" in refusal("ddr5-snc", "HBM")
    assert "--rates-only" in refusal("h100-sxm", "HBM", rates_only=False)
    assert "--rates-only" in refusal("h100-sxm", "HBM", option="--paced")
