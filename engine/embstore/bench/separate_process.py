"""Calls a function in a new Python process, whose memory has nothing of the caller's.

    python -m embstore.bench.separate_process MODULE FUNCTION REQUEST

prints the function's answer to REQUEST; both are JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def call_in_separate_process(
    function: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any], measured: str
) -> dict[str, Any]:
    """Returns function(request), called in a new process. Raises RuntimeError if that fails.

    function: a function of a module's top level; its own output is discarded. measured: the subject
        of the measurement, for the error.
    """
    where = [function.__module__, function.__name__]
    done = subprocess.run(
        [sys.executable, "-m", __name__, *where, json.dumps(request)],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the process that measures {measured} ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    module, function, request = sys.argv[1:]
    answer = getattr(importlib.import_module(module), function)(json.loads(request))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
