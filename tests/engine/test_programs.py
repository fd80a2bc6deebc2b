"""What tests run programs in processes of their own by."""

import pytest
from programs import run_program

HANGS = """
import os, time

def in_the_program():
    time.sleep(100)

def in_its_child():
    time.sleep(100)

if os.fork() == 0:
    in_its_child()
in_the_program()
"""


def test_of_a_program_that_does_not_end_its_threads_and_children_tell_where_they_are() -> None:
    with pytest.raises(AssertionError, match="still running after 1 s") as told:
        run_program(HANGS, timeout=1)
    assert "in_the_program" in str(told.value)
    assert "in_its_child" in str(told.value)
