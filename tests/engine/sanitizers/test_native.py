"""The native tests of the core's parts, as they are and under the sanitizers."""

import pytest
from native_programs import SANITIZERS, build, run

# Those that start threads, or a part of the core that does.
OF_MANY_THREADS = [
    "admission_test",
    "emulated_device_test",
    "device_look_up_test",
    "epochs_test",
    "eviction_pool_test",
    "hbm_tier_test",
    "index_test",
    "leveldb_tier_test",
    "lost_device_test",
    "medium_test",
    "path_lock_test",
    "prepared_updates_test",
    "process_local_test",
    "right_to_move_test",
    "saves_test",
    "table_faults_test",
]
# What one thread does from end to end has no race that the thread sanitizer could see.
OF_ONE_THREAD = [
    "coldest_rows_test",
    "crc32c_test",
    "cuda_device_test",
    "kernels_test",
    "key_partition_test",
    "optimizers_test",
    "pacing_test",
    "phase_test",
    "inclusive_cache_test",
    "slot_allocator_test",
]
# Scenarios a failure, and with files kept or not. As it is, it runs in full.
OF_TABLE_FAULTS_UNDER_SANITIZERS = ("20",)


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["", *SANITIZERS])
@pytest.mark.parametrize("program", OF_MANY_THREADS)
def test_the_parts_of_the_core_hold_alone(program: str, sanitizer: str) -> None:
    is_shorter = sanitizer and program == "table_faults_test"
    arguments = OF_TABLE_FAULTS_UNDER_SANITIZERS if is_shorter else ()
    assert "held: " in run(build(program, sanitizer), *arguments, timeout_s=900)


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["", "address,undefined"])
@pytest.mark.parametrize("program", OF_ONE_THREAD)
def test_the_parts_of_the_core_that_one_thread_is_at_hold_alone(
    program: str, sanitizer: str
) -> None:
    assert "held: " in run(build(program, sanitizer), timeout_s=900)
