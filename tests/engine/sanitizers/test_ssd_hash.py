"""The SSDHASH tier alone: native tests, which also kill, starve, race it and cut its power."""

import pytest
from native_programs import SANITIZERS, build, run

# Thousands of scenarios by one thread: under a sanitizer they take longer than all the rest.
TOO_LONG_FOR_SANITIZERS = {
    "nothing_is_lost_whichever_call_fails",
    "nothing_that_is_kept_is_lost_whichever_call_fails",
    "every_checkpoint_survives_a_power_cut",
    "every_checkpoint_survives_a_power_cut_where_syncs_fail",
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["", *SANITIZERS])
def test_what_is_written_is_read_whatever_happens_to_files_threads_and_the_process(
    sanitizer: str,
) -> None:
    program = build("ssd_hash_test", sanitizer)
    tests = run(program, "--list", timeout_s=60).split()
    assert set(tests) >= TOO_LONG_FOR_SANITIZERS
    if sanitizer:
        tests = [name for name in tests if name not in TOO_LONG_FOR_SANITIZERS]
    assert run(program, *tests, timeout_s=1800).endswith("held\n")
