"""The SSDHASH tier alone: its native tests, which also kill it, starve it and race it."""

import pytest
from native_programs import SANITIZERS, build, run


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizer", ["", *SANITIZERS])
def test_what_is_written_is_read_whatever_happens_to_files_threads_and_the_process(
    sanitizer: str,
) -> None:
    assert run(build("ssd_hash_test", sanitizer), timeout_s=1800).endswith("held\n")
