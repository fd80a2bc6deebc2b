"""Python functions as programs and as checks."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from powercut import shell
from powercut.errors import PowercutError
from powercut.medium import Medium

__all__ = ["FunctionRecovery", "function_command", "function_environment"]

_MODULE = "powercut.call_function"
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class FunctionRecovery:
    """A check by a function of the medium's folder and the program's output, which raises an error
    if something is wrong. Called in this process. failures: errors that mean a failed check.
    """

    function: Callable[[Path, str], object]
    failures: tuple[type[BaseException], ...] = (Exception, SystemExit)

    def check(self, medium: Medium, _: object) -> str | None:
        with _ONE_AT_A_TIME:  # tests' functions may not be thread-safe
            return self._check(medium)

    def _check(self, medium: Medium) -> str | None:
        output = medium.output.read_text(errors="replace") if medium.output.exists() else ""
        try:
            self.function(medium.folder, output)
        except self.failures as error:
            return f"{type(error).__name__}: {error}"
        return None

    def as_argument(self) -> str:
        if _module_file(self.function) is None:
            return "true"  # `remark` says so
        return shell.quote(shell.join([*function_command(self.function), "{output}"]))

    def remark(self) -> str:
        if _module_file(self.function) is not None:
            return ""
        return (
            f"cuts and doesn't check: {_qualified_name(self.function)} is no function of a module"
        )


def _module_file(function: Callable[..., object]) -> Path | None:
    """Returns the file of its module, or None if no other process could call it by name."""
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        return None
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    return None if file is None else Path(file).resolve()


def _qualified_name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))


def function_command(function: Callable[..., object]) -> tuple[str, ...]:
    """Returns the command that calls a function. Raises `PowercutError` if no module has it."""
    file = _module_file(function)
    name = _qualified_name(function)
    if file is None:
        raise PowercutError(
            f"{name}: must be a function of a module, so that a process of its own can call it"
        )
    module = file.stem if function.__module__ == "__main__" else function.__module__
    return (sys.executable, "-m", _MODULE, str(file), module, name, "{medium}")


def function_environment() -> dict[str, str]:
    """Returns an environment in which the function's module can import what this process can."""
    known = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    known.add(str(Path(sysconfig.get_path("stdlib")) / "lib-dynload"))  # also in a virtual one
    own = [path for path in sys.path if path and path not in known and not path.endswith(".zip")]
    return {"PYTHONPATH": os.pathsep.join(own)}
