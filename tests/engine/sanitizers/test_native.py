"""The native tests of the core's parts, as they are and under the sanitizers."""

from collections.abc import Sequence

import pytest
from native_programs import (
    ALSO_UNSANITIZED,
    MULTI_THREADED,
    SANITIZERS,
    SINGLE_THREADED,
    build,
    names_of_tests,
    run,
)

# Scenarios in which one call fails, with kept files and without. Without a sanitizer 120 run.
OF_TABLE_FAULTS_UNDER_SANITIZERS = ("20",)
# Tests in which one thread queues steps. They take longer than all others under the thread
# sanitizer; the others also cover the eviction thread's work beside steps.
OF_DEVICE_STEPS_BY_ONE_THREAD = {
    "a_step_of_many_partitions_takes_about_the_memory_of_one",
    "many_steps_use_the_memory_of_a_few",
    "steps_of_several_variables_give_the_results_of_separate_steps",
    "steps_without_misses_wait_for_nothing_and_take_no_memory",
}

PROGRAMS = [
    *[(program, "") for program in ALSO_UNSANITIZED],
    *[(program, sanitizer) for program in MULTI_THREADED for sanitizer in SANITIZERS],
    *[(program, "address,undefined") for program in SINGLE_THREADED],
]


@pytest.mark.sanitizer
@pytest.mark.parametrize(("program", "sanitizer"), PROGRAMS)
def test_each_part_of_the_core_passes_its_native_tests(program: str, sanitizer: str) -> None:
    built = build(program, sanitizer)
    arguments: Sequence[str] = ()
    if sanitizer and program == "table_faults_test":
        arguments = OF_TABLE_FAULTS_UNDER_SANITIZERS
    elif sanitizer == "thread" and program == "device_steps_test":
        arguments = names_of_tests(built, OF_DEVICE_STEPS_BY_ONE_THREAD)
    assert "held: " in run(built, *arguments, timeout_s=900)
