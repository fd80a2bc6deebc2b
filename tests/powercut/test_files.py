"""Power cuts of programs that save files: data that was not synced may be lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from powercut_programs import saves
from powercut_programs.saves import BYTES

from powercut.errors import PowercutError
from powercut.medium import default_base
from powercut.plugin import PowerCut

TRIES = 25


# --- Checks of a medium after a cut.


def last_number(output: str) -> int:
    numbers = [int(line) for line in output.split() if line.isdigit()]
    return numbers[-1] if numbers else 0


def number_in(path: Path) -> int:
    data = path.read_bytes()
    assert len(data) == BYTES, f"{len(data)} of {BYTES} bytes"
    assert len(set(data)) == 1, f"a mixture of {sorted(set(data))}"
    return data[0]


def newest_save_is_whole(medium: Path, output: str) -> None:
    path = medium / "state"
    if not path.exists():
        assert last_number(output) == 0, (
            f"nothing is there, and save {last_number(output)} was done"
        )
        return
    assert number_in(path) >= last_number(output)


def newest_folder_is_whole(medium: Path, output: str) -> None:
    for number in range(1, last_number(output) + 1):
        assert number_in(medium / f"save{number}" / "part") == number


def log_has_reported_records(medium: Path, output: str) -> None:
    if last_number(output) == 0:
        return
    data = (medium / "log").read_bytes()
    expected = b"".join(bytes([number]) * 1000 for number in range(1, last_number(output) + 1))
    # Without ==, as pytest would print a diff of the bytes, which takes minutes if CI is set.
    assert data.startswith(expected), "a record that was told of isn't there"


def some_save_is_whole(medium: Path, output: str) -> None:
    found = [number_in(path) for path in (medium / "state", medium / "older") if path.exists()]
    assert max(found, default=0) >= last_number(output)


def is_before_or_after(medium: Path, output: str) -> None:
    if "whole" not in output:
        return
    data = (medium / "state").read_bytes()
    if len(data) == BYTES:
        tail = data[100:]
        assert data[:100] == b"\x01" * 100
        may_be = [b"\x01" * len(tail), bytes(len(tail)), bytes(len(tail) - 50) + b"\x02" * 50]
        assert tail in may_be
    else:
        assert data == b"\x01" * 100


def records_are_whole(medium: Path, output: str) -> None:
    path = medium / "header"
    data = path.read_bytes() if path.exists() else b""
    count = data[0] if data else 0
    assert count >= last_number(output)
    for number in range(1, count + 1):
        record = data[number * saves.RECORD : (number + 1) * saves.RECORD]
        assert record.count(number) == saves.RECORD, f"record {number} isn't whole"


def newest_content_is_there(medium: Path, output: str) -> None:
    if not last_number(output):
        return
    data = (medium / "state").read_bytes()
    if data and data == bytes([data[0]]) * len(data):
        assert data[0] >= last_number(output)


def tail_has_reported_number(medium: Path, output: str) -> None:
    if not last_number(output):
        return
    data = (medium / "state").read_bytes()
    assert len(data) == BYTES
    assert min(data[-100:]) >= last_number(output)


def folder_is_for_its_group(medium: Path, output: str) -> None:
    assert medium.stat().st_mode & 0o777 == 0o750
    newest_save_is_whole(medium, output)


def moved_saves_are_there(medium: Path, output: str) -> None:
    for number in range(1, last_number(output) + 1):
        assert number_in(medium / "to" / f"save{number}") == number


Program = Callable[[Path], None]
Check = Callable[[Path, str], None]


def test_a_file_that_mkstemp_makes_is_followed_and_its_making_can_be_cut(
    power_cut: PowerCut,
) -> None:
    record = power_cut.record(saves.save_by_mkstemp, imports_once=True)
    (made,) = [place for place in record.places if place.function == "mkstemp"]
    assert (made.kind, len(made.points)) == ("name", saves.SAVES)
    power_cut(saves.save_by_mkstemp, newest_save_is_whole, tries=12, imports_once=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "check"),
    [
        (saves.save_correctly, newest_save_is_whole),
        (saves.save_in_a_new_folder, newest_folder_is_whole),
        (saves.append, log_has_reported_records),
        (saves.keep_two_saves, some_save_is_whole),
        (saves.shorten, is_before_or_after),
        (saves.sync_data_and_header, records_are_whole),
        (saves.sync_data_and_header_by_the_call, records_are_whole),
        (saves.append_by_dsync, log_has_reported_records),
        (saves.rewrite_by_dsync, newest_content_is_there),
        (saves.grow_a_mapping, tail_has_reported_number),
        (saves.make_a_mapping_writable, tail_has_reported_number),
        (saves.move_between_folders, moved_saves_are_there),
        (saves.swap_a_link, newest_save_is_whole),
        (saves.save_beside_a_socket, newest_save_is_whole),
        (saves.save_in_a_folder_for_its_group, folder_is_for_its_group),
    ],
)
def test_data_synced_in_the_right_order_is_never_lost(
    power_cut: PowerCut, program: Program, check: Check
) -> None:
    results = power_cut(program, check, tries=TRIES, imports_once=True)
    assert results.tried >= TRIES
    assert results.ended_early == 0


@pytest.mark.parametrize(
    ("program", "check"),
    [
        (saves.save_without_fsync, newest_save_is_whole),
        (saves.save_and_rename_before_the_fsync, newest_save_is_whole),
        (saves.save_without_fsync_of_the_folder, newest_save_is_whole),
        (saves.save_in_place, newest_save_is_whole),
        (saves.save_in_a_new_folder_that_is_lost, newest_folder_is_whole),
        (saves.append_without_sync, log_has_reported_records),
        (saves.sync_header_only, records_are_whole),
        (saves.sync_header_only_by_the_call, records_are_whole),
        (saves.move_between_folders_and_sync_one, moved_saves_are_there),
    ],
)
def test_a_missing_or_late_sync_is_caught(
    power_cut: PowerCut, program: Program, check: Check
) -> None:
    results = power_cut.results(program, check, tries=200, enough_failures=1, imports_once=True)
    assert results.failures


@pytest.mark.long
def test_ordered_names_need_no_sync_of_the_folder_where_a_later_file_is_synced(
    power_cut: PowerCut,
) -> None:
    """With ordered names, like ext4's journal, the same program passes except for its last save."""
    independent, ordered = (
        power_cut.results(
            saves.save_without_fsync_of_the_folder,
            newest_save_is_whole,
            tries=TRIES,
            names=names,
            imports_once=True,
        )
        for names in ("independent", "ordered")
    )
    assert 0 < len(ordered.failures) < len(independent.failures)


def test_each_sync_of_a_python_program_is_a_site_and_is_needed(power_cut: PowerCut) -> None:
    found = power_cut.mutations(
        saves.save_correctly, newest_save_is_whole, tries=TRIES, imports_once=True
    )
    lines = {result.site.site.split(":")[0] for result in found}
    assert [result.site.what for result in found] == ["sync", "sync"]
    assert lines == {"saves.py"}
    assert [result.site.name for result in found if result.failure is None] == []


def test_a_sync_below_many_calls_is_the_same_site_in_a_cut_as_in_the_record(
    power_cut: PowerCut,
) -> None:
    found = power_cut.mutations(
        saves.save_below_many_calls, newest_save_is_whole, tries=TRIES, site_frames=30
    )
    assert [result.site.name for result in found if result.failure is None] == []


def test_more_site_frames_tell_syncs_apart_by_their_callers(power_cut: PowerCut) -> None:
    one = power_cut.record(saves.save_in_a_new_folder)
    two = power_cut.record(saves.save_in_a_new_folder, site_frames=2)
    assert len(one.sites) == 2  # of a file; of a folder
    assert len(two.sites) == 3  # of a file; of the folder; of its parent


def test_useless_syncs_are_counted(power_cut: PowerCut) -> None:
    record = power_cut.record(saves.sync_twice)
    assert sum(use.calls for use in record.uses) == 4
    assert sum(use.useless_calls for use in record.uses) == 2


@pytest.mark.long
def test_removed_and_renamed_names_come_back_with_their_files(power_cut: PowerCut) -> None:
    left = []

    def look(medium: Path, _: str) -> None:
        names = {path.name: number_in(path) for path in medium.iterdir()}
        assert {2} <= set(names.values())
        left.append(tuple(sorted(names)))

    power_cut(saves.remove_existing, look, prepare=saves.make_two, tries=40, imports_once=True)
    assert set(left) == {
        ("kept", "state"),
        ("kept",),
        ("moved", "state"),
        ("moved",),
    }


@pytest.mark.long
def test_writes_by_other_ways_may_be_lost_too(power_cut: PowerCut) -> None:
    sizes = set()

    def look(medium: Path, _: str) -> None:
        if (medium / "target").exists():
            sizes.add((medium / "target").read_bytes().count(1))

    power_cut(saves.write_by_sendfile_and_mapping, look, tries=120, imports_once=True)
    assert 0 in sizes
    assert BYTES in sizes


@pytest.mark.parametrize(
    ("program", "call"),
    [(saves.sync_in_a_forked_child, "fsync"), (saves.rename_in_a_forked_child, "rename")],
)
def test_a_forked_child_that_changes_the_medium_is_an_error(
    power_cut: PowerCut, program: Program, call: str
) -> None:
    with pytest.raises(PowercutError, match=rf"{call} of .*/state in a forked child"):
        power_cut.results(program, newest_save_is_whole, tries=1)


@pytest.mark.long
@pytest.mark.parametrize("program", [saves.replace_links, saves.remove_a_link_and_replace_links])
def test_a_link_that_comes_back_has_its_own_target(
    power_cut: PowerCut, tmp_path: Path, program: Program
) -> None:
    """On disk too, where a new file may get the inode number of a removed one."""
    came_back = set()

    def look(medium: Path, _: str) -> None:
        for link in medium.iterdir():
            assert os.readlink(link) == f"./target{link.name[-1]}/"  # noqa: PTH115
            came_back.add(link.name)

    for base in (tmp_path, default_base()):
        power_cut(program, look, tries=40, prepare=saves.make_a_link, base=base, imports_once=True)
    assert {f"link{number}" for number in range(saves.SAVES + 1)} <= came_back


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (saves.save_and_write_a_new_file_past_the_library, "another"),
        (saves.save_and_write_an_old_file_past_the_library, "state"),
        (saves.save_and_rename_past_the_library, "renamed"),
    ],
)
def test_a_change_that_can_t_be_followed_is_an_error_that_names_the_file(
    power_cut: PowerCut, program: Program, name: str
) -> None:
    with pytest.raises(PowercutError, match=f"/{name}: was changed in a way that can't be follow"):
        power_cut.results(program, newest_save_is_whole, tries=1, prepare=saves.make_two)


def test_a_program_whose_end_is_not_seen_is_an_error(power_cut: PowerCut) -> None:
    with pytest.raises(PowercutError, match="doesn't reach its end"):
        power_cut.record(saves.end_without_an_exit)


@pytest.mark.long
@pytest.mark.parametrize("imports_once", [False, True])
def test_a_daemon_that_the_program_leaves_loses_power_too(
    power_cut: PowerCut, imports_once: bool
) -> None:
    alive: list[str] = []
    ended: list[str] = []

    def look(_: Path, output: str) -> None:
        for process in output.split():
            (alive if Path(f"/proc/{process}").exists() else ended).append(process)

    power_cut(saves.leave_a_daemon, look, tries=6, imports_once=imports_once)
    assert not alive
    assert ended


@pytest.mark.long
def test_a_child_that_uses_the_medium_first_is_the_process_that_is_followed(
    power_cut: PowerCut,
) -> None:
    power_cut(saves.save_in_a_child_alone, newest_save_is_whole, tries=TRIES, imports_once=True)
    with pytest.raises(PowercutError, match="a second process uses the folders"):
        power_cut.results(saves.save_in_a_child_first, newest_save_is_whole, tries=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tries": 0}, "tries: must be 1 or more"),
        ({"points": ("drain",)}, "points: the program makes no call of these kinds"),
        ({"points": ("drain",), "rounds": 2}, "points: the program makes no call"),
        ({"without": ("sync nowhere",)}, "without: sync nowhere: no such call"),
    ],
)
def test_no_try_is_an_error(power_cut: PowerCut, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PowercutError, match=message):
        power_cut(saves.save_correctly, newest_save_is_whole, **options)


def test_the_replay_of_a_function_s_failure_is_a_command(
    power_cut: PowerCut, tmp_path: Path
) -> None:
    results = power_cut.results(
        saves.save_without_fsync, newest_save_is_whole, tries=100, enough_failures=1
    )
    again = subprocess.run(
        results.failures[0].replay,
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1, again.stderr
    assert "AssertionError" in again.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "program", [saves.link_elsewhere_and_unlink, saves.move_out_and_remove_the_folder]
)
def test_a_renamed_file_is_never_without_a_name(power_cut: PowerCut, program: Program) -> None:
    """Names reach the medium in any order, except for names that depend on each other."""
    counts = set()

    def look(medium: Path, _: str) -> None:
        files = [path for path in medium.rglob("*") if path.is_file()]
        assert {number_in(path) for path in files} == {1}
        counts.add((len(files), (medium / "folder").exists()))

    power_cut(program, look, prepare=saves.make_one_in_a_folder, tries=40, imports_once=True)
    assert len(counts) > 1


def test_a_failing_check_inside_a_test_says_why_it_has_no_replay(
    power_cut: PowerCut,
) -> None:
    def nothing_is_ever_lost(medium: Path, output: str) -> None:
        newest_save_is_whole(medium, output)

    results = power_cut.results(
        saves.save_without_fsync, nothing_is_ever_lost, tries=100, enough_failures=1
    )
    assert results.failures[0].replay.endswith("is no function of a module")
