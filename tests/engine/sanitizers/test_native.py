"""The native tests of the core's parts, as they are and under the sanitizers."""

import pytest
from native_programs import AS_THEY_ARE, OF_MANY_THREADS, OF_ONE_THREAD, SANITIZERS, build, run

# Scenarios a failure, and with files kept or not. As it is, it runs in full.
OF_TABLE_FAULTS_UNDER_SANITIZERS = ("20",)

PROGRAMS = [
    *[(program, "") for program in AS_THEY_ARE],
    *[(program, sanitizer) for program in OF_MANY_THREADS for sanitizer in SANITIZERS],
    *[(program, "address,undefined") for program in OF_ONE_THREAD],
]


@pytest.mark.sanitizer
@pytest.mark.parametrize(("program", "sanitizer"), PROGRAMS)
def test_the_parts_of_the_core_hold_alone(program: str, sanitizer: str) -> None:
    is_shorter = sanitizer and program == "table_faults_test"
    arguments = OF_TABLE_FAULTS_UNDER_SANITIZERS if is_shorter else ()
    assert "held: " in run(build(program, sanitizer), *arguments, timeout_s=900)
