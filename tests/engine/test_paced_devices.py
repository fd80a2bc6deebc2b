"""A paced tier takes as long as its device would, and nothing else about it changes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable, skip_without_library
from example_devices import ExampleCache, ExampleDevice
from exports import assert_same
from hypothesis import given
from hypothesis import strategies as st

import embstore as es
from embstore import Access
from embstore.errors import InvalidArgumentError

DIM = 16
ROW = 128  # with Adagrad's accumulator
# Loads and stores take different times, and times grow with the size.
SLOW = ExampleDevice(
    "slow-memory",
    lambda access, size, _: (2000.0 if access is Access.LOAD else 3000.0) + size,
)
DISK = ExampleDevice("slow-disk", lambda _, size, __: 40e3 + size, is_addressable=False)


def accesses(var: es.EmbeddingVariable) -> list[Counter[tuple[Access, int]]]:
    """Returns the accesses of each tier, over all partitions, by (access, threads)."""
    tiers = var.stats()["tiers"]
    counts: list[Counter[tuple[Access, int]]] = [
        Counter() for _ in range(len(tiers) // var.partition_num)
    ]
    for i, tier in enumerate(tiers):
        for count in tier["accesses"]:
            counts[i % len(counts)][count["access"], count["threads"]] += count["accesses"]
    return counts


def seconds_of(work: Callable[[], object]) -> float:
    """Returns the seconds of `work`. It runs in a thread of its own, which has no credit from an
    earlier sleep that took too long."""
    took = []

    def measure() -> None:
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    return took[0]


def train(var: es.EmbeddingVariable, steps: int, batch: int = 2000, keys: int = 20000) -> None:
    random = np.random.default_rng(1)
    gradients = np.ones((batch, DIM), np.float32)
    for _ in range(steps):
        ids = random.integers(0, keys, batch)
        var.lookup(ids, train=True)
        var.apply_gradients(ids, gradients)


@pytest.mark.parametrize("partition_num", [1, 3])
def test_work_on_a_tier_takes_as_long_as_its_device_says(
    make_variable: MakeVariable, partition_num: int
) -> None:
    var = make_variable(
        dim=DIM, storage=es.StorageOption(devices=[SLOW]), partition_num=partition_num
    )
    beyond = []
    for _ in range(5):
        with es.record_accesses(var) as recorded:
            took = seconds_of(lambda: train(var, steps=10))
        modelled = float(es.phase_times_ns(SLOW, recorded.phases).sum()) * 1e-9
        # A wait shorter than a sleep is carried over, so a little may still be owed.
        assert took >= modelled - 1e-3
        beyond.append(took / modelled)
        if beyond[-1] < 1.25:
            break
    # Work that isn't on rows takes this computer's own time, and other programs load it, too.
    assert min(beyond) < 1.25


def test_a_phase_takes_the_sum_of_the_times_of_its_accesses(make_variable: MakeVariable) -> None:
    var = make_variable(dim=DIM, storage=es.StorageOption(devices=[SLOW]))
    ids = np.arange(5000)
    gradients = np.ones((ids.size, DIM), np.float32)
    took = seconds_of(lambda: var.apply_gradients(ids, gradients))
    # New rows, and what lies beside them, are stored and then updated.
    assert took >= 5000 * 2 * (3000 + ROW + 3000 + 16) * 1e-9 - 1e-3
    assert seconds_of(lambda: var.lookup(ids)) >= 5000 * (2000 + 64) * 1e-9 - 1e-3


@pytest.mark.long
@pytest.mark.parametrize("cpu_cache_bytes", [0, 4 << 20])
def test_a_paced_run_takes_what_was_predicted_from_one_that_was_not(
    make_variable: MakeVariable, cpu_cache_bytes: int
) -> None:
    device = ExampleDevice("as-predicted", SLOW.time_of, cpu_cache_bytes=cpu_cache_bytes)
    keys = 200_000

    def run(**options: Any) -> tuple[float, Any]:
        var = make_variable(dim=DIM, storage=es.StorageOption(**options))
        with es.record_accesses(var, caches=[device]) as recorded:
            train(var, steps=20, batch=20000, keys=keys)
            began = recorded.phases["start_ns"][-1]
            took = seconds_of(lambda: train(var, steps=20, batch=8000, keys=keys))
        var.close()
        return took, recorded.phases[recorded.phases["start_ns"] > began]

    differences = []
    for _ in range(5):  # other programs may disturb a run
        took, phases = run()
        modelled_ns = es.phase_times_ns(device, phases, cache=0)
        waits_ns = np.maximum(0.0, modelled_ns - phases["elapsed_ns"]).sum()
        paced, _ = run(devices=[device])
        differences.append(abs(paced / (took + waits_ns * 1e-9) - 1))
        if differences[-1] < 0.05:
            break
    assert min(differences) < 0.05


def test_threads_that_wait_count_as_being_at_the_device(make_variable: MakeVariable) -> None:
    var = make_variable(dim=DIM, storage=es.StorageOption(devices=[SLOW]))
    ids = np.arange(2000)
    var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    before = accesses(var)[0]
    start = threading.Barrier(3)

    def look_up() -> None:
        start.wait()
        for _ in range(20):
            var.lookup(ids, train=True)

    readers = [threading.Thread(target=look_up) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    loads = accesses(var)[0] - before
    assert loads.total() == 3 * 20 * ids.size
    # On a busy computer all three are seldom there at once. Without their waits they hardly ever
    # would.
    assert loads[Access.LOAD, 3] > loads.total() / 10


def test_variables_on_one_device_share_it(make_variable: MakeVariable) -> None:
    variables = [make_variable(dim=DIM, storage=es.StorageOption(devices=[SLOW])) for _ in range(2)]
    ids = np.arange(2000)
    for var in variables:
        var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    start = threading.Barrier(2)

    def look_up(var: es.EmbeddingVariable) -> None:
        start.wait()
        for _ in range(20):
            var.lookup(ids, train=True)

    readers = [threading.Thread(target=look_up, args=(var,)) for var in variables]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    both = sum(accesses(var)[0][Access.LOAD, 2] for var in variables)
    assert both > 2 * 20 * ids.size / 10


def test_moves_in_the_background_are_paced_too(make_variable: MakeVariable, tmp_path: Path) -> None:
    skip_without_library(es.StorageType.DRAM_PMEM)
    var = make_variable(
        dim=DIM,
        storage=es.StorageOption(
            es.StorageType.DRAM_PMEM,
            [None, tmp_path],
            [1000 * ROW, 100000 * ROW],
            devices=[None, SLOW],
        ),
    )
    ids = np.arange(20000)
    with es.record_accesses(var) as recorded:
        gradients = np.ones((ids.size, DIM), np.float32)

        def fill() -> None:
            var.apply_gradients(ids, gradients)
            var.drain()

        took = seconds_of(fill)
    below = recorded.phases[recorded.phases["tier"] == 1]
    of_threads = [
        es.phase_times_ns(SLOW, below[below["thread"] == thread]).sum() * 1e-9
        for thread in np.unique(below["thread"])
    ]
    assert below["accesses"][below["access"] == Access.STORE].sum() == 2 * 19000
    assert sum(of_threads) >= 19000 * (3000 + ROW + 3000 + 48) * 1e-9
    # drain() doesn't wait for the time that an eviction thread still owes.
    assert took >= min(of_threads) - 1e-3


# A read takes 80 us, and up to 128 reads are in flight.
LATENT_DISK = ExampleDevice("latent-disk", lambda *_: 80e3 / 128, is_addressable=False, alone=80e3)


def disk_of_cold_rows(
    make_variable: MakeVariable, folder: Path, rows: int, scheme: str = "auto"
) -> es.EmbeddingVariable:
    var = make_variable(
        dim=DIM,
        storage=es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            [None, folder],
            [100 * ROW],
            ssdhash_option=es.SSDHashOption(direct_io=True, io_scheme=scheme),
            devices=[None, LATENT_DISK],
        ),
    )
    var.apply_gradients(np.arange(rows), np.ones((rows, DIM), np.float32))
    var.drain()
    return var


def test_a_batch_that_reads_one_row_takes_as_long_as_the_disk_does(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    var = disk_of_cold_rows(make_variable, tmp_path, 20000)
    cold = np.random.default_rng(0).permutation(20000)[:400]

    def look_up() -> None:
        for key in cold:
            var.lookup(np.array([key]), count=False)  # so that no row is read for a promotion

    with es.record_accesses(var) as recorded:
        took = seconds_of(look_up)
    reads = recorded.phases[recorded.phases["access"] == Access.FILE_READ]
    assert (reads["accesses"] == 1).all()
    assert reads.size > 300  # the first tier or the append buffer has the others
    assert es.phase_times_ns(LATENT_DISK, reads) == pytest.approx(80e3)
    assert took >= reads.size * 80e-6 - 1e-3


@pytest.mark.parametrize("scheme", ["pread", "auto"])
def test_reads_that_wait_for_one_another_take_the_latency_of_each(
    make_variable: MakeVariable, tmp_path: Path, scheme: str
) -> None:
    var = disk_of_cold_rows(make_variable, tmp_path, 40000, scheme)
    some = np.random.default_rng(0).permutation(40000)[:300]
    with es.record_accesses(var) as recorded:
        took = seconds_of(lambda: var.lookup(some))
    reads = recorded.phases[recorded.phases["access"] == Access.FILE_READ]
    calls = int(reads["accesses"].sum())
    assert calls > 100
    by_uring = var.stats()["tiers"][1]["io_scheme"] == "io_uring"
    assert int(reads["rounds"].sum()) == (-(-calls // 128) if by_uring else calls)
    assert took >= int(reads["rounds"].sum()) * 80e-6 - 1e-3


PHASE = np.dtype(
    [
        ("access", np.int32),
        ("threads", np.int32),
        ("accesses", np.uint64),
        ("bytes", np.uint64),
        ("rounds", np.uint64),
        *((name, np.float64, (1,)) for name in ("hits", "dirtied", "clean_misses", "dirty_misses")),
    ]
)


@given(
    accesses=st.integers(1, 200),
    in_flight=st.integers(1, 128),
    size=st.integers(1, 1 << 25),
    one_ns=st.floats(1.0, 1e5),
    alone_ns=st.floats(1.0, 1e6),
)
def test_accesses_in_flight_take_the_latency_of_one_and_no_less(
    accesses: int, in_flight: int, size: int, one_ns: float, alone_ns: float
) -> None:
    disk = ExampleDevice("disk", lambda *_: one_ns, is_addressable=False, alone=alone_ns)
    phase = np.zeros(1, PHASE)
    rounds = -(-accesses // in_flight)
    phase[["access", "threads", "accesses", "bytes", "rounds"]] = (
        Access.FILE_READ, 1, accesses, accesses * size, rounds
    )  # fmt: skip
    longer = max(1.0, size / (1 << 24))  # than the largest size in the table
    assert es.phase_times_ns(disk, phase)[0] == pytest.approx(
        max(accesses * one_ns, rounds * alone_ns) * longer
    )


@given(
    accesses=st.integers(1, 200),
    found=st.floats(0, 1),
    only_dirtied=st.floats(0, 1),
    alone_ns=st.floats(1.0, 1e6),
)
def test_accesses_that_hit_the_caches_are_not_waited_for(
    accesses: int, found: float, only_dirtied: float, alone_ns: float
) -> None:
    memory = ExampleDevice("memory", lambda *_: 10.0, alone=alone_ns)
    phase = np.zeros(1, PHASE)
    phase[["access", "threads", "accesses", "bytes", "rounds"]] = (
        Access.LOAD, 1, accesses, accesses * 64, 1
    )  # fmt: skip
    phase["hits"] = accesses * found * (1 - only_dirtied)
    phase["dirtied"] = accesses * found * only_dirtied
    missed = accesses * (1 - found)
    assert es.phase_times_ns(memory, phase, cache=0)[0] == pytest.approx(
        max(missed * 10.0, min(1.0, missed) * alone_ns), abs=1e-6
    )


@pytest.mark.parametrize("scheme", ["pread", "auto"])
def test_reads_of_files_past_the_page_cache_are_paced(
    make_variable: MakeVariable, tmp_path: Path, scheme: str
) -> None:
    var = make_variable(
        dim=DIM,
        storage=es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            [None, tmp_path],
            [100 * ROW],
            ssdhash_option=es.SSDHashOption(direct_io=True, io_scheme=scheme),
            devices=[None, DISK],
        ),
    )
    ids = np.arange(40000)
    var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    var.drain()
    some = np.random.default_rng(0).permutation(ids)[:1000]
    with es.record_accesses(var) as recorded:
        took = seconds_of(lambda: var.lookup(some, train=True))
    reads = recorded.phases[recorded.phases["access"] == Access.FILE_READ]
    calls = int(reads["accesses"].sum())
    assert calls > 10
    assert took >= calls * (40e3 + 4096) * 1e-9 - 1e-3
    assert took >= es.phase_times_ns(DISK, reads).sum() * 1e-9 - 1e-3


def test_rows_on_paced_devices_are_the_same_bit_for_bit(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    def trained(**options: Any) -> dict[str, Any]:
        directory = tmp_path / str(len(options))
        directory.mkdir()
        storage = es.StorageOption(
            es.StorageType.DRAM_SSDHASH, [None, directory], [500 * ROW], **options
        )
        var = make_variable(dim=DIM, storage=storage, partition_num=2)
        train(var, steps=5, batch=500, keys=2000)
        return var.export()

    paced, not_paced = trained(devices=[SLOW, DISK]), trained()
    assert_same(paced, not_paced)


def test_stats_name_the_device_of_each_tier(make_variable: MakeVariable, tmp_path: Path) -> None:
    var = make_variable(
        storage=es.StorageOption(
            es.StorageType.DRAM_SSDHASH, [None, tmp_path], devices=[None, DISK]
        ),
        partition_num=2,
    )
    assert [tier["device"] for tier in var.stats()["tiers"]] == [None, "slow-disk"] * 2
    assert [tier["device"] for tier in make_variable().stats()["tiers"]] == [None]


# --- Caches before a device


def timed_look_ups(var: es.EmbeddingVariable, ids: Any, times: int) -> float:
    return seconds_of(lambda: [var.lookup(ids) for _ in range(times)])


def test_rows_that_the_cpus_caches_hold_cost_the_device_nothing(
    make_variable: MakeVariable,
) -> None:
    device = ExampleDevice("cached", SLOW.time_of, cpu_cache_bytes=4 << 20)
    var = make_variable(dim=DIM, storage=es.StorageOption(devices=[device]))
    ids = np.arange(100_000)  # 13 MB
    for part in np.split(ids, 5):
        var.apply_gradients(part, np.ones((part.size, DIM), np.float32))
    hot, cold = ids[:5000], ids
    timed_look_ups(var, hot, 5)
    once = hot.size * (2000 + 64) * 1e-9
    took = min(timed_look_ups(var, hot, 5) for _ in range(3))
    assert took < 0.5 * 5 * once
    # Each row has left the caches before it is wanted again, so each look-up is a miss.
    timed_look_ups(var, cold, 8)  # until earlier accesses count no more
    once = cold.size * (2000 + 64) * 1e-9
    assert timed_look_ups(var, cold, 1) >= 0.9 * once


def test_recorded_hits_are_those_of_caches_of_these_sizes(make_variable: MakeVariable) -> None:
    # The caches are so small that every line is simulated. A look-up of a row of 64 bytes touches a
    # line.
    caches = [es.Caches(64 << 10), es.Caches(1 << 20), es.Caches(0, 128 << 10), es.Caches(0)]
    var = make_variable(dim=DIM, optimizer=es.optimizers.SGD(0.1))
    ids = np.arange(1600)  # 100 KiB
    var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    with es.record_accesses(var, caches=caches) as recorded:
        for _ in range(60):
            var.lookup(ids)
        for _ in range(60):
            var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    phases = recorded.phases
    loads = phases[phases["access"] == Access.LOAD]
    assert loads.size == 60
    assert (loads["accesses"] == 1600).all()
    assert (loads["bytes"] == 1600 * 64).all()
    # In a ring of 100 KiB each line leaves a cache of 64 KiB before it comes again, and never one
    # of 1 MiB.
    hits = loads["hits"]
    assert hits[0].tolist() == [0, 0, 0, 0]
    assert hits[-1, 0] == 0
    assert hits[-1, 1] > 0.9 * 1600
    assert hits[-1, 3] == 0
    clean = loads["clean_misses"][:, 2]
    assert clean[0] == 1600
    assert clean[-1] < 0.1 * 1600
    assert (loads["dirty_misses"] == 0).all()
    assert (loads["dirtied"] == 0).all()

    updates = phases[(phases["access"] == Access.UPDATE) & (phases["bytes"] == 1600 * 64)]
    assert updates.size == 60
    # The loads left the rows in the cache; once the rows are changed there, an update costs
    # nothing.
    assert updates["dirtied"][0, 1] > 0.9 * 1600
    assert updates["hits"][-1, 1] > 0.9 * 1600


def test_a_memory_in_front_of_the_device_has_its_own_times(make_variable: MakeVariable) -> None:
    cache = ExampleCache(256 << 10, hit=100.0, clean_miss=3000.0, dirty_miss=6000.0)
    device = ExampleDevice("behind-memory", SLOW.time_of, cache=cache)
    var = make_variable(
        dim=DIM, optimizer=es.optimizers.SGD(0.1), storage=es.StorageOption(devices=[device])
    )
    ids = np.arange(25_000)  # 1.6 MB
    var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    var.lookup(ids)  # evicts the memory's changed lines
    assert timed_look_ups(var, ids, 1) >= 0.9 * ids.size * 3000e-9
    with es.record_accesses(var, caches=[device]) as recorded:
        for _ in range(3):
            var.lookup(ids)
    (last,) = recorded.phases[-1:]
    assert last["clean_misses"][0] > 0.9 * ids.size
    modelled = es.phase_times_ns(device, recorded.phases[-1:], cache=0)
    assert 0.9 < modelled[0] / (ids.size * 3000.0) <= 1.0


# --- Recording


def test_a_recording_says_when_a_phase_begins_by_its_own_clock(make_variable: MakeVariable) -> None:
    var = make_variable(dim=DIM)
    train(var, steps=1, batch=50, keys=10)
    recorded = es.record_accesses(var)
    with pytest.raises(InvalidArgumentError, match="enter the `with` block first"):
        recorded.elapsed_ns()
    with recorded:
        var.lookup([1])
        between_ns = recorded.elapsed_ns()
        var.lookup([1, 2])
        end_ns = recorded.elapsed_ns()
    before, after = recorded.phases["start_ns"]
    assert 0 <= before <= between_ns <= after <= end_ns


def test_a_recording_has_the_same_counts_as_the_stats(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    variables = [
        make_variable(
            dim=DIM,
            storage=es.StorageOption(es.StorageType.DRAM_SSDHASH, [None, tmp_path], [500 * ROW]),
            partition_num=2,
        ),
        make_variable(dim=DIM),
    ]
    with es.record_accesses(variables) as recorded:
        for var in variables:
            train(var, steps=5, batch=500, keys=2000)
            var.drain()
    for var in variables:
        train(var, steps=1, batch=500, keys=2000)  # isn't recorded
    phases = recorded.phases
    assert (np.diff(phases["start_ns"]) >= 0).all()
    assert phases["hits"].shape == (phases.size, 0)
    made_after = [accesses(var) for var in variables]
    for number in range(2):
        of_variable = phases[phases["variable"] == number]
        for tier, told in enumerate(made_after[number]):
            for (access, threads), count in told.items():
                same = (
                    (of_variable["tier"] == tier)
                    & (of_variable["access"] == access)
                    & (of_variable["threads"] == threads)
                )
                assert of_variable["accesses"][same].sum() <= count
    fresh = make_variable(dim=DIM)
    with es.record_accesses(fresh) as recorded:
        train(fresh, steps=3)
    totals: Counter[tuple[Access, int]] = Counter()
    for phase in recorded.phases:
        totals[Access(phase["access"]), int(phase["threads"])] += int(phase["accesses"])
    assert [totals] == accesses(fresh)


def test_a_recording_that_overflows_says_so(make_variable: MakeVariable) -> None:
    var = make_variable(dim=DIM)
    with es.record_accesses(var, max_phases=3) as recorded:
        train(var, steps=5)
    with pytest.raises(es.errors.StoreFullError, match=r"phases weren't recorded.*max_phases"):
        _ = recorded.phases


def test_a_variable_that_is_closed_meanwhile_is_recorded_until_then(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(dim=DIM)
    with es.record_accesses(var) as recorded:
        train(var, steps=1)
        var.close()
    assert recorded.phases.size > 0


def test_sizes_of_caches_may_have_a_unit() -> None:
    assert es.Caches("32M", "4G") == es.Caches(32 << 20, 4 << 30)
    with pytest.raises(
        InvalidArgumentError, match="memory_bytes must be bytes, or a number with K"
    ):
        es.Caches("32M", "much")


def test_wrong_arguments_of_a_recording_are_refused(make_variable: MakeVariable) -> None:
    var = make_variable()
    with pytest.raises(InvalidArgumentError, match="variables must be"):
        es.record_accesses(["var"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match=r"caches\[0\] must be"):
        es.record_accesses(var, caches=[7])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="max_phases must be at least 1"):
        es.record_accesses(var, max_phases=0)
    with pytest.raises(InvalidArgumentError, match="cpu_bytes must be at least 0"):
        es.Caches(-1)
    with pytest.raises(InvalidArgumentError, match="nothing was recorded"):
        _ = es.record_accesses(var).phases
    recorded = es.record_accesses(var)
    with recorded:
        pass
    with pytest.raises(InvalidArgumentError, match="only once"), recorded:
        pass


# --- Devices that are refused


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([None, None, None], r"devices has 3 entries, but DRAM_SSDHASH has 2 tiers"),
        ("slow", "devices must be a list"),
        (SLOW, "devices must be a list"),
        ([object()], r"devices\[0\] must be an embstore.devices.Device or None, got object"),
        ([DISK], r"devices\[0\]: slow-disk can't be loaded from and stored to.*DRAM"),
        (
            [None, ExampleDevice("", SLOW.time_of)],
            r"devices\[1\].name must be a string that isn't empty",
        ),
        (
            [ExampleDevice("small", SLOW.time_of, cpu_cache_bytes=-1)],
            r"devices\[0\].cpu_cache_bytes must be at least 0",
        ),
        (
            [ExampleDevice("x", SLOW.time_of, cache=ExampleCache(1 << 20, 1, 1, 1, 256))],
            r"devices\[0\].cache.line_bytes must be 64",
        ),
        (
            [ExampleDevice("x", SLOW.time_of, cache=object())],  # type: ignore[arg-type]
            r"devices\[0\].cache must be an embstore.devices.MemoryCache",
        ),
    ],
)
def test_an_object_that_is_no_device_of_its_tier_is_refused(
    devices: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        es.StorageOption(es.StorageType.DRAM_SSDHASH, [None, tmp_path], devices=devices)


def test_persistent_memory_can_not_be_paced_as_a_disk(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"devices\[1\]: slow-disk.*PMEM"):
        es.StorageOption(es.StorageType.DRAM_PMEM, [None, tmp_path], devices=[None, DISK])


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_not_finite_and_positive_is_refused(
    make_variable: MakeVariable, latency: float
) -> None:
    device = ExampleDevice(
        "odd", lambda _, size, threads: latency if threads == 7 and size == 12 else 1.0
    )
    with pytest.raises(
        InvalidArgumentError,
        match=r"devices\[0\]: odd.time_ns\(Access.LOAD, 12, 7\) must be finite and above 0",
    ):
        make_variable(storage=es.StorageOption(devices=[device]))


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_a_latency_that_is_not_finite_and_positive_is_refused(
    make_variable: MakeVariable, latency: float
) -> None:
    device = ExampleDevice("odd", lambda *_: 1.0, alone=latency)
    with pytest.raises(
        InvalidArgumentError,
        match=r"devices\[0\]: odd.alone_ns\(Access.LOAD, [0-9]+\) must be finite and above 0",
    ):
        make_variable(storage=es.StorageOption(devices=[device]))


def test_a_device_without_a_latency_is_refused() -> None:
    class Hurried:
        name, is_addressable, cpu_cache_bytes, cache = "hurried", True, 0, None

        def time_ns(self, *_: int) -> float:
            return 1.0

    with pytest.raises(InvalidArgumentError, match=r"got Hurried, which has no alone_ns"):
        es.StorageOption(devices=[Hurried()])  # type: ignore[list-item]


def test_a_device_whose_time_fails_is_named(make_variable: MakeVariable) -> None:
    def time_of(access: Access, *_: int) -> float:
        raise KeyError(f"no curve of {access.name}")

    with pytest.raises(
        InvalidArgumentError,
        match=r"devices\[0\]: broken.alone_ns\(.*can't be had: 'no curve",
    ):
        make_variable(storage=es.StorageOption(devices=[ExampleDevice("broken", time_of)]))
