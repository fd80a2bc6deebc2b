"""The native tests of the core's parts, as they are and under the sanitizers."""

import pytest
from native_programs import SANITIZERS, build, run

# Of what takes minutes under a sanitizer; as they are, they run in full.
SHORTER = {"table_faults_test": ("20",)}  # scenarios a failure, and with files kept or not


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["", *SANITIZERS])
@pytest.mark.parametrize(
    "program",
    [
        "access_test",
        "admission_test",
        "coldest_rows_test",
        "epochs_test",
        "eviction_pool_test",
        "index_test",
        "leveldb_tier_test",
        "optimizers_test",
        "pool_copies_test",
        "pool_test",
        "prepared_updates_test",
        "slot_allocator_test",
        "table_faults_test",
    ],
)
def test_the_parts_of_the_core_hold_alone(program: str, sanitizer: str) -> None:
    arguments = SHORTER.get(program, ()) if sanitizer else ()
    assert "held: " in run(build(program, sanitizer), *arguments, timeout_s=900)
