"""Includes between the rooms of the core run down, never up."""

from __future__ import annotations

import re
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "engine"
CORE = ENGINE / "core"

# From top to bottom: a room may include those below it, and nothing else.
ROOMS = (
    "bindings",
    "table_on_device",
    "table",
    "keep",
    "parts",
    "update",
    "lookup",
    "movement",
    "admission",
    "store",
    "tiers/make_tiers",
    "tiers/hbm",
    "tiers/leveldb",
    "tiers/log",
    "tiers/medium",
    "tiers/memory",
    "tiers/tier",
    "gpu",
    "rules",
    "row",
    "memory",
    "files",
    "access",
    "threads",
    "platform",
    "errors",
)


def room_of(file: Path) -> str:
    """Returns the room of a file, from its path in the core: its folder, or else its name."""
    parts = file.with_suffix("").parts
    return "/".join(parts[:2]) if parts[0] == "tiers" else parts[0]


def includes() -> dict[tuple[str, str], list[str]]:
    """Returns, for each pair of rooms (including, included), the files and what they include."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted([*CORE.rglob("*.h"), *CORE.rglob("*.cc")]):
        own = file.relative_to(CORE)
        if "testing" in own.parts:
            continue
        for included in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
            pair = room_of(own), room_of(Path(included))
            if pair[0] != pair[1]:
                found.setdefault(pair, []).append(f"{own}: {included}")
    return found


def test_no_include_runs_up() -> None:
    rank = {room: i for i, room in enumerate(ROOMS)}
    up = {
        pair: files
        for pair, files in includes().items()
        if pair[0] not in rank or rank.get(pair[1], -1) <= rank[pair[0]]
    }
    # The bindings make pacers, which watch the core from beside it.
    del up["bindings", "pacing"]
    assert up == {}


def test_the_list_of_rooms_is_complete() -> None:
    rooms = {room for pair in includes() for room in pair} - {"pacing"}
    assert rooms == set(ROOMS)
