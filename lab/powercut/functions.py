"""Python functions in the place of programs and of checks."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from powercut import shell
from powercut.errors import PowercutError
from powercut.forks import Fork, Forks
from powercut.medium import Medium

__all__ = ["ForkedFunction", "FunctionRecovery", "function_command", "function_environment"]

_MODULE = "powercut.call_function"
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class FunctionRecovery:
    """A function of the medium's folder and of what the program printed; it raises where something
    is wrong. Called in this process.
    """

    function: Callable[[Path, str], object]

    def check(self, medium: Medium) -> str | None:
        with _ONE_AT_A_TIME:  # tests' functions may not be made for threads
            return self._check(medium)

    def _check(self, medium: Medium) -> str | None:
        output = medium.output.read_text(errors="replace") if medium.output.exists() else ""
        try:
            self.function(medium.folder, output)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def words(self) -> str:
        if not _is_of_a_module(self.function):
            return "true"  # `remark` says so
        return shell.quote(shell.join([*function_command(self.function), "{output}"]))

    def remark(self) -> str:
        if _is_of_a_module(self.function):
            return ""
        return f"cuts and doesn't check: {self.function.__qualname__} is no function of a module"


def _is_of_a_module(function: Callable[..., object]) -> bool:
    return inspect.getsourcefile(function) is not None and "<" not in function.__qualname__


class ForkedFunction:
    """Starts what `function_command` gives, whose module is imported once for all tries."""

    def __init__(self) -> None:
        self._forks: Forks | None = None
        self._making = threading.Lock()

    def start(self, argv: Sequence[str], environment: Mapping[str, str], output: int) -> Fork:
        with self._making:
            if self._forks is None:
                # Without it they belong to no try.
                own = {k: v for k, v in environment.items() if k != "POWERCUT_SESSION"}
                self._forks = Forks(own)
        arguments = argv[argv.index(_MODULE) + 1 :]
        return self._forks.start(
            _MODULE, arguments, environment=environment, stdout=output, stderr=output
        )

    def close(self) -> None:
        if self._forks is not None:
            self._forks.close()


def function_command(function: Callable[..., object]) -> tuple[str, ...]:
    """The command that calls it. Raises `PowercutError` for one that isn't a module's."""
    file = inspect.getsourcefile(function)
    name = function.__qualname__
    if file is None or not _is_of_a_module(function):
        raise PowercutError(
            f"{name}: must be a function of a module, so that a process of its own can call it"
        )
    return (sys.executable, "-m", _MODULE, str(Path(file).resolve()), name, "{medium}")


def function_environment() -> dict[str, str]:
    """So that its module can import what ours could."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
