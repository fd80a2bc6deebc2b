"""A real browser without a window, spoken to through two pipes: nothing but Chromium is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

__all__ = ["Browser", "Window", "find_chromium"]

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S: Final = 60.0
_LAUNCHER: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """Path of the program; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@dataclass(frozen=True)
class Window:
    """Of that many CSS pixels."""

    width: int
    height: int
    phone: bool = False


class Browser:
    """One page of one browser. A context manager.

    console: what the page wrote to its console, and every complaint of the browser's about it.
    requests: the addresses that the page asked for, its own first.
    """

    def __init__(self, program: str) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        from_browser, its_output = os.pipe()
        its_input, to_browser = os.pipe()
        # Out of the way of 3, which it reads from, and 4, which it writes to.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (its_input, its_output)]
        command = [
            *(sys.executable, "-c", _LAUNCHER, *map(str, theirs), program),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *("--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it has children of its own, to be ended with it
        )
        for end in (its_input, its_output, *theirs):
            os.close(end)
        self._in, self._out = from_browser, to_browser
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, window: Window) -> None:
        """Load a file."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=window.width,
            height=window.height,
            deviceScaleFactor=2 if window.phone else 1,
            mobile=window.phone,
        )
        self._loaded = False
        self._call("Page.navigate", url=path.absolute().as_uri())
        limit = time.monotonic() + _LIMIT_S
        while not self._loaded:
            self._hear(self._message(limit))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def accessibility_names(self, role: str) -> list[str]:
        """What a screen reader says of each thing of that role in the page."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            node["name"]["value"]
            for node in nodes
            if not node["ignored"] and node["role"]["value"] == role
        ]

    def see_no_colours(self) -> None:
        self._call("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")

    def screenshot(self, *, whole: bool = False) -> bytes:
        """PNG, of the window or of the whole page."""
        taken = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(taken["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + _LIMIT_S
        while True:
            answer = self._message(limit)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _message(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            if time.monotonic() > limit:
                raise TimeoutError(f"Chromium said nothing for {_LIMIT_S:g} s")
            some = os.read(self._in, 1 << 20)
            if not some:
                raise AssertionError(f"Chromium ended: status {self._process.wait()}")
            self._received += some
        message, self._received = self._received.split(b"\0", 1)
        read: dict[str, Any] = json.loads(message)
        return read

    def _hear(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Log.entryAdded":
            self.console.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(arg.get("value")) for arg in told["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(told["exceptionDetails"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while os.read(self._in, 1 << 20):  # until the last of the children is gone
            pass
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
