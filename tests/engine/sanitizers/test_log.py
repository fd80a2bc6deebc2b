"""The tiers of the log, in pools and files: native tests, which also kill, starve and race them."""

import re
from pathlib import Path

import pytest
from native_programs import FILES, ON_DISK, SANITIZERS, build, names_of_tests, run

# These run thousands of scenarios on one thread, or test such a run. Under a sanitizer they would
# take longer than all other tests, which make the same calls. So they run without one.
TOO_LONG_FOR_SANITIZERS = {
    "nothing_is_lost_whichever_call_fails",
    "no_checkpoint_is_lost_whichever_call_fails",
    "every_checkpoint_in_files_survives_a_power_cut",
    "every_checkpoint_in_files_survives_a_power_cut_where_syncs_fail",
    "a_missing_sync_is_detected",
}
# Longer tests that make every call from one thread, so they have no race. Similar tests with a
# compaction thread, or in which several threads restore rows, are left in; so is one of three tests
# of power cuts.
BY_ONE_THREAD = {
    "a_checkpoint_that_the_next_process_does_not_find_stays_away_after_a_power_cut",
    "a_checkpoint_that_the_next_process_finds_survives_a_power_cut",
    "a_disk_that_fills_up_at_any_byte_loses_nothing",
    "an_interrupted_creation_leaves_a_checkpoint_or_none",
    "every_checkpoint_in_a_pool_of_the_page_cache_survives_a_power_cut",
    "every_checkpoint_in_a_pool_survives_a_power_cut_where_syncs_fail",
    "nothing_of_a_kept_checkpoint_is_ever_written",
    "operations_at_random_under_faults_at_random",
    "random_operations_by_what_is_quickest",
    "random_operations_by_pread",
    "random_operations_by_io_uring",
    "random_operations_direct",
    "random_checkpoints_in_files",
    "random_checkpoints_in_files_past_the_page_cache",
    "rows_go_into_a_new_file_after_a_sync_that_failed",
    "rows_of_every_size_come_back",
}
LEFT_OUT = {
    "address,undefined": TOO_LONG_FOR_SANITIZERS,
    "thread": TOO_LONG_FOR_SANITIZERS | BY_ONE_THREAD,
}
# Tests that bypass the page cache need files on a disk: memory's file systems support that only
# since Linux 6.6.
PAST_THE_PAGE_CACHE = re.compile(r"_direct(_|$)|_past_the_page_cache")
# Each part runs as a process of its own, so that all processors have work. Neighbours in the list
# are alike and take about as long: every PARTS-th test makes parts of about equal length.
PARTS = 3


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("part", ["past the page cache", *range(PARTS)])
def test_written_rows_are_read_whatever_happens_to_files_threads_and_the_process(
    sanitizer: str, part: int | str
) -> None:
    program = build("log_test", sanitizer)
    tests = names_of_tests(program, LEFT_OUT[sanitizer])
    past = [name for name in tests if PAST_THE_PAGE_CACHE.search(name)]
    if isinstance(part, int):
        check(program, [name for name in tests if name not in past][part::PARTS])
    else:
        check(program, past, files=ON_DISK)


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", sorted(TOO_LONG_FOR_SANITIZERS))
def test_no_failure_of_any_call_loses_what_was_kept(name: str) -> None:
    check(build("log_test"), [name])


def check(program: Path, wanted: list[str], files: Path = FILES) -> None:
    assert wanted
    told = run(program, *wanted, timeout_s=1800, files=files)
    assert told.endswith(f"held: {len(wanted)} tests\n")
