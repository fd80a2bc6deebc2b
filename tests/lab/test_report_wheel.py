"""The report as pip installs it: a wheel must carry the page's templates."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from report_results import write_results

pytest.importorskip("matplotlib", reason="matplotlib draws figures; pip install 'pmemlab[report]'")
pytest.importorskip("hatchling", reason="hatchling builds the lab's wheel; make setup")

LAB = Path(__file__).parents[2] / "lab"
BUILD = """
import sys
from hatchling.builders.wheel import WheelBuilder
print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"]))
"""
WRITE = """
import sys
import pmemlab
from pmemlab.cli import main
assert pmemlab.__file__.startswith(sys.argv[1]), pmemlab.__file__
sys.exit(main(["report", sys.argv[2]]))
"""


@pytest.mark.long
def test_a_built_wheel_writes_the_page(tmp_path: Path) -> None:
    wheel = _python(BUILD, str(LAB), str(tmp_path)).strip()
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    (results := tmp_path / "results").mkdir()
    write_results(results)
    _python(WRITE, str(installed), str(results), path=installed)
    page = (results / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "@media" in page


def _python(code: str, *arguments: str, path: Path | None = None) -> str:
    """Runs the code in a new Python process, with `path` first in its module path. Returns its
    output."""
    before = () if path is None else ("import sys", f"sys.path.insert(0, {str(path)!r})")
    command = [sys.executable, "-c", "\n".join((*before, code)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
