"""The core's stress test under the sanitizers."""

import pytest
from native_programs import build, run

BATCHES = 60  # for each thread and storage; for a longer run by hand, raise it and change the seed


@pytest.mark.sanitizer
@pytest.mark.parametrize(("seed", "sanitizer"), [(1, "thread"), (2, "address,undefined")])
def test_threads_that_read_and_train_one_table_break_nothing(seed: int, sanitizer: str) -> None:
    program = build("table_stress", sanitizer)
    assert f"held: seed {seed}" in run(program, str(seed), str(BATCHES), timeout_s=600)
