"""A program that imports TensorFlow first, and then trains in children that can be killed.

An import of TensorFlow takes 3 s of CPU, so one program serves all tests that need such a process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ProgramWithTensorFlow"]

_PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import tensorflow.compat.v1 as tf

def use(how):
    tf.get_embedding_variable("var", 2)
    print(how, flush=True)

assert not [name for name in sys.modules if name.startswith("embstore")]
child = os.fork()
if not child:
    import embstore
    embstore.deeprec
    use("as an attribute")
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
import embstore.deeprec
use("by its name")
from test_deeprec_checkpoints import Model

for path in sys.stdin:
    child = os.fork()
    if child:
        print(child, flush=True)
        os.waitpid(child, 0)
        print("killed", flush=True)
        continue
    model = Model()
    saver = model.saver(max_to_keep=3)
    with model.session() as session:
        session.run(model.init)
        for step in range(1, 100000):
            model.trained(session, 1, first=step - 1)
            saver.save(session, path.strip(), global_step=step, write_meta_graph=False)
            print("saved", step, flush=True)
"""


class ProgramWithTensorFlow:
    """The running program. errors: a file that gets its error output."""

    def __init__(self, errors: Path) -> None:
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(Path(__file__).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=os.environ,
            )
        self._errors = errors
        # The ways in which embstore.deeprec was imported after TensorFlow and used, if they worked.
        self.imported = [self._line() for _ in range(2)]

    def begin_training(self, prefix: Path) -> int:
        """Starts a child that saves a checkpoint per step until it is killed. Returns its id."""
        assert self._process.stdin is not None
        print(prefix, file=self._process.stdin, flush=True)
        return int(self._line())

    def saved_steps(self) -> Iterator[int]:
        """Yields the steps that the child has saved, until the child ends."""
        while (line := self._line()) != "killed":
            yield int(line.split()[1])

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the program has failed
            self._process.communicate(timeout=60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()[-4000:]
        return line.rstrip("\n")
