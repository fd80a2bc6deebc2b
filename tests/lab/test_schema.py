"""Reading YAML and JSON documents: the errors that are refused, and their messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pmemlab.errors import DeviceFileError, LabError, PriceFileError, TopologyError
from pmemlab.model.devices.device_file import read_device_file
from pmemlab.model.openembedding.published import load_published
from pmemlab.model.openembedding.setup import load_setup
from pmemlab.model.planning.prices import load_prices
from pmemlab.report.documents import ResultsError, read_folder
from pmemlab.scenarios.document import ScenarioError
from pmemlab.scenarios.reading import load_scenario
from pmemlab.schema import Count, Document, FieldError, File, OneOrMore, Text
from pmemlab.topology import load_topology

READERS: list[tuple[Callable[[Path], object], type[Exception]]] = [
    (load_topology, TopologyError),
    (load_scenario, ScenarioError),
    (read_device_file, DeviceFileError),
    (load_prices, PriceFileError),
    (load_published, LabError),
    (load_setup, LabError),
]


@dataclass(frozen=True)
class Part(Document, aliases={"length_m": "length"}):
    name: Text
    length_m: Count = 1

    def check(self) -> None:
        if self.name == "bad":
            raise FieldError("is no good name", "name")


@dataclass(frozen=True)
class Whole(Document):
    parts: OneOrMore[Part]
    spare: Part = field(default_factory=lambda: Part("none"))


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    """Returns the error for a file that is no `Whole`, without the path of its folder."""
    with pytest.raises(LabError) as caught:
        File.from_yaml(written(folder, text), LabError).read(Whole)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(("read", "error"), READERS)
def test_a_duplicate_field_is_refused_by_every_reader(
    read: Callable[[Path], object], error: type[Exception], tmp_path: Path
) -> None:
    path = written(tmp_path, "name: mine\nsummary: one\nproof: {nodes: [0]}\nsummary: another\n")
    with pytest.raises(error) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}:4: summary: is there twice, first on line 2; leave one out"
    )


def test_a_duplicate_field_in_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"tests": 1, "tests": 2}')
    with pytest.raises(ResultsError, match=r"a\.json: not JSON: tests is there twice"):
        read_folder(tmp_path)


def test_a_duplicate_nested_field_is_refused(tmp_path: Path) -> None:
    text = "parts:\n  - name: a\n    length: 2\n    'name': b\n"
    assert refused(tmp_path, text) == (
        "mine.yaml:4: parts[0].name: is there twice, first on line 2; leave one out"
    )


def test_each_wrong_field_is_named_with_its_line(tmp_path: Path) -> None:
    text = "parts:\n  - name: a\n  - length: none\n  - {name: bad}\nspare:\n  name: 3\n"
    assert refused(tmp_path, text).splitlines() == [
        "mine.yaml:3: parts[1].name: is missing",
        "mine.yaml:3: parts[1].length: must be a whole number above 0, not 'none'",
        "mine.yaml:4: parts[2].name: is no good name",
        "mine.yaml:6: spare.name: must be text, not 3",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.yaml: the file: is empty, and must be a mapping of fields"),
        ("- 1\n", "mine.yaml:1: the file: must be a mapping of fields, not [1]"),
        ("parts: []\n", "mine.yaml:1: parts: must be a list of one mapping or more, not []"),
        ("\nparts: {}\n", "mine.yaml:2: parts: must be a list of one mapping or more, not {}"),
        ("parts: [3]\n", "mine.yaml:1: parts[0]: must be a mapping of fields, not 3"),
        ("part: []\n", "mine.yaml:1: part: is no field here; there are parts, spare"),
        (
            "parts: [{name: a, length_m: 1}]\n",
            "mine.yaml:1: parts[0].length_m: is no field here; there are name, length",
        ),
        ("parts: [{name: a, length: true}]", "mine.yaml:1: parts[0].length: must be a whole"),
        ("parts: [{name: a, length: 1.5}]", "mine.yaml:1: parts[0].length: must be a whole"),
        ("parts: [{'a[': 1}]", "mine.yaml:1: parts[0].a[: is no field here; there are name, leng"),
        ("parts: [\n", "mine.yaml:2: not YAML: "),
        ("\x00", "mine.yaml: not YAML: "),
        ("parts: &a [*a]\n", "mine.yaml:1: parts[0]: must be a mapping of fields, not [[...]]"),
        ("parts: !!python/object:x.Y {}\n", "mine.yaml:1: not YAML: could not determine"),
        ("parts: !!int many\n", "mine.yaml: not YAML: invalid literal for int()"),
        ("[" * 5000, "mine.yaml:1: not YAML: "),
        ("- " * 100_000, "mine.yaml:1: not YAML: "),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    found = refused(tmp_path, text)
    assert found.startswith(message)
    assert "\n" not in found


def test_aliases_of_aliases_are_read_without_expanding_them(tmp_path: Path) -> None:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30))
    assert "l0: is no field here" in refused(tmp_path, f"l0: &l0 [x]\n{levels}\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2e9", 2e9), ("-1e-3", -1e-3), ("1.5E+3", 1500.0), ("2.e1", 20.0), ("1.5", 1.5)),
        *(("7", 7), ("'2e9'", "2e9"), ("e9", "e9"), ("2e", "2e"), ("0x1e3", 0x1E3)),
        *(("2026-02-09", "2026-02-09"), ("2026-02-09 12:00:00", "2026-02-09 12:00:00")),
    ],
)
def test_numbers_and_days_are_read_as_yaml_1_2_has_them(
    tmp_path: Path, text: str, value: object
) -> None:
    found = File.from_yaml(written(tmp_path, f"parts: {text}\n"), LabError).content["parts"]
    assert (type(found), found) == (type(value), value)


def test_a_null_field_counts_as_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "parts: [{name: a, length: null}]\nspare:\n")
    whole = File.from_yaml(path, LabError).read(Whole)
    assert whole == Whole((Part("a", 1),))


def test_programs_that_read_no_document_import_neither_pydantic_nor_yaml() -> None:
    program = (
        "import sys, pmemlab.cli, pmemlab.scenarios.plugin, pmemlab.workloads.wdl; "
        "sys.exit(', '.join({'pydantic', 'pydantic_core', 'yaml'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
