"""The native tests of the core's parts, as they are and under the sanitizers."""

import pytest
from native_programs import OF_MANY_THREADS, OF_ONE_THREAD, SANITIZERS, build, run

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
