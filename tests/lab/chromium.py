"""A single page in Debian's Chromium, headless, controlled through Selenium."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

__all__ = ["Browser", "Window", "missing"]

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_DRIVER: Final = "chromedriver"
_LIMIT_S: Final = 60.0
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def missing() -> str | None:
    """Returns what to install before a Browser can start; None if everything is there."""
    if _browser() is None:
        return "Chromium is missing; to get it: apt-get install chromium"
    if shutil.which(_DRIVER) is None:
        return "Chromium's driver is missing; to get it: apt-get install chromium-driver"
    return None


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


@dataclass(frozen=True)
class Window:
    """A window's size in CSS pixels. phone: use a phone's viewport, two pixels per CSS pixel."""

    width: int
    height: int
    phone: bool = False


class Browser:
    """A headless browser; a context manager. REQUIRES: missing() is None."""

    def __init__(self) -> None:
        options = ChromeOptions()
        options.binary_location = _browser() or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        for flag in _FLAGS:
            options.add_argument(flag)
        # The browser leaves folders behind in TMPDIR.
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        # Selenium looks for a driver on the network unless it is told which one to use.
        driver = ChromeService(
            shutil.which(_DRIVER), env={**os.environ, "TMPDIR": self._folder.name}
        )
        self._driver = Chrome(options, driver)
        self._driver.set_page_load_timeout(_LIMIT_S)
        self._driver.set_script_timeout(_LIMIT_S)

    def open(self, path: Path, window: Window) -> None:
        """Loads a file."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=window.width,
            height=window.height,
            deviceScaleFactor=2 if window.phone else 1,
            mobile=window.phone,
        )
        self._driver.get(path.absolute().as_uri())

    def console(self) -> list[str]:
        """Returns the page's console output and the browser's errors about the page since the last
        call."""
        return self._log("browser")

    def requests(self) -> list[str]:
        """Returns the URLs requested since the last call, the page's own first."""
        events = [json.loads(event)["message"] for event in self._log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page."""
        return self._driver.execute_script(f"return {expression}")

    def accessibility_names(self, role: str) -> list[str]:
        """Returns what a screen reader says for each element of the page that has the role."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            node["name"]["value"]
            for node in nodes
            if not node["ignored"] and node["role"]["value"] == role
        ]

    def see_no_colours(self) -> None:
        """Shows the page as a viewer without colour vision sees it."""
        self._call("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")

    def screenshot(self) -> bytes:
        """Returns a PNG of the window."""
        taken = self._call("Page.captureScreenshot")
        return base64.b64decode(taken["data"])

    def _call(self, command: str, **parameters: Any) -> dict[str, Any]:
        """Calls the browser's own DevTools protocol, for functions that Selenium doesn't offer."""
        answer: dict[str, Any] = self._driver.execute_cdp_cmd(command, parameters)
        return answer

    def _log(self, kind: str) -> list[str]:
        entries = self._driver.get_log(kind)  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]

    def close(self) -> None:
        self._driver.quit()
        self._folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
