"""Checks what the repository's Markdown pages say: links, paths, commands, Python examples.

On the front page and in the guides each ```python block runs, and the blocks of a page continue
each other. A comment behind a `print` is what it must print. A ```python no-run block needs
servers: only its names are checked.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pmemlab.cli
import powercut.command

CLONE = Path(__file__).parents[1]
FOLDERS = ("docker", "engine", "examples", "lab", "scenarios")
PAGES = [
    CLONE / "README.md",
    *sorted(page for folder in FOLDERS for page in (CLONE / folder).rglob("*.md")),
]
# The folders to which a path in a page may be relative, besides the page's own.
ROOTS = (CLONE, CLONE / "engine", CLONE / "lab", CLONE / "lab" / "pmemlab")

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
_INDENTED = re.compile(r"(?:(?<=\n\n)|(?<=\A))(?:    [^\n]*\n|\n(?=    ))+", re.M)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.M)
_FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:c|cc|h|md|py|sh|yaml|json|svg)")
_FOLDER = re.compile(rf"(?:{'|'.join(FOLDERS)}|tests)/[\w./-]*")
_EXTRAS = re.compile(r"\b(engine|lab|embstore|pmemlab)\[([a-z,]+)\]")
_MADE_BY_RUNS = ("results/", "wheels/", ".lab/", ".venv/")


class Page(NamedTuple):
    """A page's text without code, its code blocks as (kind, text), and its inline code spans."""

    prose: str
    blocks: list[tuple[str, str]]
    spans: list[str]


def read(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    blocks = [(match["info"].strip(), match["text"]) for match in _FENCE.finditer(text)]
    text = _FENCE.sub("", text)
    blocks += [("", match[0]) for match in _INDENTED.finditer(text)]
    text = _INDENTED.sub("\n", text)
    return Page(
        _SPAN.sub("", text), blocks, [" ".join(span.split()) for span in _SPAN.findall(text)]
    )


def name_of(path: Path) -> str:
    return str(path.relative_to(CLONE))


every_page = pytest.mark.parametrize("path", PAGES, ids=name_of)


# --- Links, paths and extras


def anchors(path: Path) -> set[str]:
    headings = _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


@every_page
def test_every_link_within_the_repository_leads_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{link}: there is no {target}"
        assert target.is_relative_to(CLONE), f"{link}: leads out of the repository"
        assert not anchor or anchor in anchors(target), f"{link}: {file} has no such heading"


@every_page
def test_every_path_that_a_page_names_exists(path: Path) -> None:
    missing = []
    for span in read(path).spans:
        is_path = _FILE.fullmatch(span) or _FOLDER.fullmatch(span)
        if not is_path or span.startswith(_MADE_BY_RUNS):
            continue
        if not any((root / span).exists() for root in (path.parent, *ROOTS)):
            missing.append(span)
    assert not missing


SOURCES = [
    source
    for folder in (*FOLDERS, "tests")
    for source in (CLONE / folder).rglob("*.py")
    if source != Path(__file__)
]


def test_every_extra_that_a_page_or_a_message_names_exists() -> None:
    folders = {"embstore": "engine", "pmemlab": "lab"}
    for path in (*PAGES, *SOURCES):
        for line in re.findall(r".*pip install.*", path.read_text(encoding="utf-8")):
            for package, extras in _EXTRAS.findall(line):
                project = (CLONE / folders.get(package, package) / "pyproject.toml").read_text()
                for extra in extras.split(","):
                    assert re.search(rf"^{extra} = \[", project, re.M), f"{path}: {line}"


def test_the_front_page_is_short() -> None:
    assert len((CLONE / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


# --- Commands


def commands(text: str) -> Iterator[list[str]]:
    """Yields the simple commands of shell lines, each as its words from the program on."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # not a shell line, but a program's output
            continue
        while words:
            ends = [
                i for i, word in enumerate(words) if word in ("|", "&&", ">") or word[-1:] == ";"
            ]
            end = ends[0] if ends else len(words)
            command, words = words[:end], words[end + 1 :]
            for i, word in enumerate(command):
                if Path(word).name in ("pmemlab", "powercut", "make", "python", "python3"):
                    yield [Path(word).name, *command[i + 1 :]]
                    break


def own(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def parser_of(program: str) -> argparse.ArgumentParser:
    return pmemlab.cli._parser() if program == "pmemlab" else powercut.command._parser()


def check_whole(program: str, words: list[str]) -> None:
    """Parses a command as it would be run."""
    _, rest = parser_of(program).parse_known_args(own(words))
    takes_more = words[:1] == ["test"]  # pytest's arguments
    assert not rest or takes_more, f"unrecognized: {rest}"


def check_part(program: str, words: list[str]) -> None:
    """Checks the names in a command that may be shortened: its subcommands and its options."""
    parser, rest = parser_of(program), own(words)
    while groups := [
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]:
        if not rest or rest[0] in ("...", "COMMAND"):
            return
        assert rest[0] in groups[0], f"{program} has no command {rest[0]}"
        parser, rest = groups[0][rest[0]], rest[1:]
    if parser.prog.endswith(" test"):
        return  # the options are pytest's
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in parser._option_string_actions, f"{word} of {program}"


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (CLONE / "Makefile").read_text(), re.M)
    for word in words:
        if "=" not in word and not word.startswith("-"):
            assert word in targets, f"make {word}"


def check_module(words: list[str]) -> None:
    """Asserts that the program of `python -m` is a file of the repository."""
    if "-m" not in words:
        return
    module = words[words.index("-m") + 1]
    if module.split(".")[0] not in ("benchmarks", "embstore", "pmemlab", "powercut"):
        return
    places = [root / module.replace(".", "/") for root in (CLONE / "engine", CLONE / "lab")]
    assert any(
        place.with_suffix(".py").is_file() or (place / "__main__.py").is_file() for place in places
    ), f"python -m {module}"


@every_page
def test_every_command_that_a_page_names_exists(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = read(path)
    texts = [(text, True) for kind, text in page.blocks if not kind.startswith(("python", "yaml"))]
    texts += [(span, False) for span in page.spans]
    for text, is_whole in texts:
        for program, *words in commands(text):
            if program == "make":
                check_make(words)
            elif program.startswith("python"):
                check_module(words)
            elif words and is_whole:
                try:
                    check_whole(program, words)
                except SystemExit:
                    pytest.fail(f"{program} {shlex.join(words)}: {capsys.readouterr().err}")
            elif words:
                check_part(program, words)


@every_page
def test_every_option_that_a_page_names_belongs_to_a_program(path: Path) -> None:
    code = "\n".join(source.read_text(encoding="utf-8") for source in SOURCES)
    for span in read(path).spans:
        option = re.match(r"--[\w-]+", span)
        assert option is None or f'"{option[0]}"' in code, span


# --- Python


def python_blocks(path: Path, kind: str) -> list[str]:
    return [text for info, text in read(path).blocks if info == kind]


def pages_with(kind: str) -> list[Path]:
    guides = [page for page in PAGES if page.parent != CLONE / "scenarios"]
    return [page for page in guides if python_blocks(page, kind)]


def imports(package: str, program: str) -> bool:
    return re.search(rf"^import {package}\b", program, re.M) is not None


# `make check` installs TensorFlow; the other packages take long to import.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.long] * imports("(keras|tensorflow|torch)", program))
        for path in pages_with("python")
        for program in ["\n".join(python_blocks(path, "python"))]
    ],
    ids=name_of,
)
def test_the_python_examples_of_a_page_run(path: Path, tmp_path: Path) -> None:
    program = "\n".join(python_blocks(path, "python"))
    for package in re.findall(r"^import (keras|torch)$", program, re.M):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} isn't installed")
    python = Path(sys.executable)
    if imports("tensorflow", program):
        python = Path(sys.prefix) / "tensorflow" / "bin" / "python"  # made by `make tensorflow`
        if not python.exists():
            pytest.skip("TensorFlow isn't installed: make tensorflow")
    for folder in ("mnt/pmem0", "mnt/ssd0", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    program = re.sub(r'"/(mnt|tmp)/', rf'"{tmp_path}/\1/', program)
    ran = subprocess.run(
        [python, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    told = re.findall(r"^ *print\(.*\)  # (.+)$", program, re.M)
    shown = iter(ran.stdout.splitlines())
    assert all(line in shown for line in told), f"expected {told}, printed {ran.stdout}"


@pytest.mark.parametrize("path", pages_with("python no-run"), ids=name_of)
def test_the_python_examples_that_need_servers_use_names_that_exist(path: Path) -> None:
    for block in python_blocks(path, "python no-run"):
        for node in ast.walk(ast.parse(block)):
            chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.fullmatch(r"es(\.\w+)+", chain) and chain not in ("es.keras", "es.torch"):
                assert exists(chain.split(".")[1:]), chain


def exists(names: list[str]) -> bool:
    if names[0] in ("keras", "torch") and len(names) > 1:  # importing these takes seconds
        package = CLONE / "engine" / "embstore" / names[0] / "__init__.py"
        return f'"{names[1]}"' in package.read_text(encoding="utf-8")
    found: Any = importlib.import_module("embstore")
    for name in names:
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True
