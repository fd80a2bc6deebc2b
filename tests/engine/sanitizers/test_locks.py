"""The rules of the core's locks, which annotations state and Clang checks."""

import pytest
from native_programs import compile_all


@pytest.mark.sanitizer
def test_guarded_data_is_touched_only_with_its_lock_held() -> None:
    done = compile_all("address,undefined")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
