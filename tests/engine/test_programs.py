"""Reports about the programs that tests run in processes of their own."""

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


def test_threads_and_children_of_a_program_that_does_not_end_print_where_they_are() -> None:
    run_program("")  # imports what programs need
    for timeout in (1, 8):  # on a busy computer it may take longer to get there
        with pytest.raises(AssertionError, match=f"still running after {timeout} s") as told:
            run_program(HANGS, timeout=timeout)
        if "in_the_program" in str(told.value) and "in_its_child" in str(told.value):
            return
    raise AssertionError(told.value)
