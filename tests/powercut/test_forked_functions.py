"""Functions as programs: each run is a process of its own, and modules are imported once."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from powercut_programs import imports

from powercut.errors import PowercutError
from powercut.plugin import PowerCut


def accept(_: Path, __: str) -> None:
    """Accepts any content."""


def runs_of_write_state(power_cut: PowerCut, **environment: str) -> list[list[int]]:
    """Returns for each run the process that imported its module, its own process, and its number of
    threads.
    """
    runs: list[list[int]] = []

    def look(_: Path, output: str) -> None:
        runs.append([int(word) for word in output.split()])

    power_cut.results(
        imports.write_state, look, tries=6, environment=environment, imports_once=True
    )
    assert len(runs) == 7  # one more run is without a cut
    return runs


def test_a_module_is_imported_once_for_each_program_that_runs_at_a_time(
    power_cut: PowerCut,
) -> None:
    importers, programs, threads = zip(*runs_of_write_state(power_cut), strict=True)
    assert len(set(programs)) == len(programs)
    assert 1 <= len(set(importers)) <= len(os.sched_getaffinity(0))
    assert not set(importers) & set(programs)
    assert set(threads) == {1}


@pytest.mark.long
def test_a_module_whose_import_starts_a_thread_is_imported_for_each_run(
    power_cut: PowerCut,
) -> None:
    runs = runs_of_write_state(power_cut, IMPORT_STARTS_A_THREAD="1")
    assert all(importer == program and threads == 2 for importer, program, threads in runs)


def test_the_processes_that_import_end_with_the_tries(power_cut: PowerCut) -> None:
    for importer, *_ in runs_of_write_state(power_cut):
        assert not Path(f"/proc/{importer}").exists()


def test_an_error_at_import_is_reported_as_the_programs(power_cut: PowerCut) -> None:
    with pytest.raises(PowercutError, match="this module can't be imported"):
        power_cut.results(
            imports.write_state, accept, environment={"IMPORT_FAILS": "1"}, imports_once=True
        )


def test_a_program_that_fails_is_reported_with_its_status(power_cut: PowerCut) -> None:
    with pytest.raises(PowercutError, match="ended with status 7"):
        power_cut.results(imports.end_with_7, accept, imports_once=True)


def test_writes_at_a_programs_exit_can_be_cut(power_cut: PowerCut) -> None:
    record = power_cut.record(imports.write_at_exit, imports_once=True)
    assert "write" in {place.kind for place in record.places}


def test_a_program_that_never_ends_is_killed_when_its_time_is_over(
    power_cut: PowerCut, tmp_path: Path
) -> None:
    with pytest.raises(PowercutError, match="still running after 1 s"):
        power_cut.results(imports.never_end, accept, timeout_s=1, base=tmp_path, imports_once=True)


def test_an_import_that_never_ends_is_killed_when_its_time_is_over(power_cut: PowerCut) -> None:
    environment = {"IMPORT_NEVER_ENDS": "1"}
    with pytest.raises(PowercutError, match="still running after 1 s"):
        power_cut.results(
            imports.write_state, accept, timeout_s=1, environment=environment, imports_once=True
        )


def test_a_large_environment_comes_through(power_cut: PowerCut) -> None:
    assert runs_of_write_state(power_cut, LARGE="x" * 100_000, AS_LARGE="x" * 100_000)


def test_a_command_is_not_imported(power_cut: PowerCut) -> None:
    with pytest.raises(PowercutError, match="imports_once: is for functions"):
        power_cut.results(["true"], accept, imports_once=True)


@pytest.mark.parametrize("imports_once", [False, True])
def test_a_function_of_a_package_imports_its_neighbours(
    power_cut: PowerCut, imports_once: bool
) -> None:
    power_cut(imports.write_by_a_neighbour, accept, tries=2, imports_once=imports_once)


def test_a_function_that_another_module_decorates_is_called(power_cut: PowerCut) -> None:
    power_cut(imports.decorated, accept, tries=2)


def test_functions_that_cannot_be_called_by_name_are_refused(power_cut: PowerCut) -> None:
    for program in (
        partial(imports.write_state),
        imports.StateWriter().write_state,
        lambda _: None,
    ):
        with pytest.raises(PowercutError, match="must be a function of a module"):
            power_cut.results(program, accept, tries=1)


def test_a_recovery_that_has_no_name_fails_with_a_replay_that_cuts(power_cut: PowerCut) -> None:
    def refuse_a_cut(why: str, medium: Path, _: str) -> None:
        if not (medium / "state").exists() or (medium / "state").read_text() != "told":
            pytest.fail(why)

    refuse = partial(refuse_a_cut, "it is refused")
    results = power_cut.results(imports.write_state, refuse, tries=2, names="independent")
    assert results.failures
    assert all("it is refused" in failure.outcome.message for failure in results.failures)
    assert "cuts and doesn't check" in results.failures[0].replay


@pytest.mark.parametrize("imports_once", [False, True])
def test_a_variable_for_the_program_leaves_it_what_its_module_imports(
    power_cut: PowerCut, imports_once: bool
) -> None:
    environment = {"TOLD": "yes"}
    record = power_cut.record(
        imports.write_state_from_variable, environment=environment, imports_once=imports_once
    )
    assert record.point_count > 0
