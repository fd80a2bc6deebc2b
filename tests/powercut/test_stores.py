"""Power cuts of programs on persistent memory: unflushed stores may be lost."""

from __future__ import annotations

import signal
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from powercut_programs import EXAMPLES, cases_program, compiled, loads_libpmem

from powercut.campaign import run_tries
from powercut.errors import PowercutError
from powercut.experiment import CommandRecovery, Experiment
from powercut.frames import short_stack
from powercut.medium import Medium
from powercut.plan import every_point, sampled
from powercut.plugin import PowerCut
from powercut.record import Record
from powercut.settings import CutSettings, Moment

OLD, NEW, NEWER = (int(str(digit) * 16, 16) for digit in (1, 2, 3))
LINES, WORDS_IN_LINE = 512, 8
SEEDS = 24
FILE_NAME = "words"

Cut = Callable[..., list[tuple[int, ...]]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    cases_program(folder)
    compiled(EXAMPLES / "append.c", folder)
    compiled(EXAMPLES / "append.c", folder, "-DFORGET_FLUSH", name="append_forgets")
    compiled(EXAMPLES / "check.c", folder)
    return folder


@pytest.fixture
def old_words(tmp_path: Path) -> Path:
    file = tmp_path / FILE_NAME
    file.write_bytes(struct.pack("<Q", OLD) * LINES * WORDS_IN_LINE)
    return file


class Looking:
    """A check that always passes, and records the content that it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def check(self, medium: Medium, _: object) -> str | None:
        content = (medium.folder / FILE_NAME).read_bytes()
        self.seen.append(struct.unpack(f"<{LINES * WORDS_IN_LINE}Q", content))
        return None

    def as_argument(self) -> str:
        return "true"

    def remark(self) -> str:
        return ""


@pytest.fixture
def cut_at_the_end(programs: Path, old_words: Path) -> Cut:
    """Returns a function that cuts a case's power at its end, and returns the words of each try,
    one try per seed.
    """

    def cut(case: str, seeds: int = SEEDS, **settings: int) -> list[tuple[int, ...]]:
        looking = Looking()
        experiment = Experiment(
            program=(str(programs / "cases"), f"{{medium}}/{FILE_NAME}", case),
            recovery=looking,
            prepare=("cp", str(old_words), "{medium}"),
            settings=CutSettings(points=("exit",), **settings),  # type: ignore[arg-type]
        )
        with experiment.prepared() as template:
            tries = [[Moment(1, seed)] for seed in range(seeds)]
            results = run_tries(experiment, tries, template, jobs=2)
        assert not results.failures
        assert results.ended_early == 0
        return looking.seen

    return cut


def first_words(seen: Sequence[Sequence[int]]) -> set[int]:
    return {words[0] for words in seen}


@pytest.mark.parametrize(
    "case",
    [
        "store",
        *("flush", "memcpy-nodrain"),  # flushed and not drained
        "drain-elsewhere",  # a drain in another thread doesn't cover this thread's flushes
        "memcpy-noflush",  # a drain doesn't cover unflushed data
    ],
)
def test_stores_that_were_not_flushed_and_drained_may_be_lost(
    cut_at_the_end: Cut, case: str
) -> None:
    assert first_words(cut_at_the_end(case)) == {OLD, NEW}


@pytest.mark.parametrize(
    "case",
    ["flush-drain", "persist", "memcpy-nodrain-drain", "memcpy", "memset-persist", "msync"],
)
def test_stores_that_were_flushed_and_drained_are_never_lost(
    cut_at_the_end: Cut, case: str
) -> None:
    assert first_words(cut_at_the_end(case)) == {NEW}


def test_a_drain_promises_a_line_as_it_was_at_the_flush(cut_at_the_end: Cut) -> None:
    assert first_words(cut_at_the_end("store-after-flush")) == {NEW, NEWER}


def test_an_older_flush_that_is_drained_last_undoes_nothing(cut_at_the_end: Cut) -> None:
    assert first_words(cut_at_the_end("older-flush-drained-last")) == {NEWER}


def test_a_flush_counts_though_the_line_was_flushed_before_with_the_same_bytes(
    cut_at_the_end: Cut,
) -> None:
    assert first_words(cut_at_the_end("store-again-and-flush")) == {NEW}


def torn_lines(words: Sequence[int]) -> int:
    lines = [words[at : at + WORDS_IN_LINE] for at in range(0, len(words), WORDS_IN_LINE)]
    return sum(len(set(line)) > 1 for line in lines)


def test_lines_are_torn_and_words_are_not(cut_at_the_end: Cut) -> None:
    seen = cut_at_the_end("store")
    assert {word for words in seen for word in words} == {OLD, NEW}
    assert sum(map(torn_lines, seen)) > LINES


def test_words_are_whole_while_threads_store(cut_at_the_end: Cut) -> None:
    seen = cut_at_the_end("store-beside-threads")
    assert {word for words in seen for word in words} <= {OLD, NEW, NEWER}
    for words in seen:
        assert all(words[line * WORDS_IN_LINE] == NEW for line in range(1, LINES))


def test_lines_stay_whole_with_atomic_bytes_of_a_line(cut_at_the_end: Cut) -> None:
    seen = cut_at_the_end("store", atomic_bytes=64)
    assert sum(map(torn_lines, seen)) == 0
    assert first_words(seen) == {OLD, NEW}


def test_a_cut_loses_nothing_some_or_nearly_all(cut_at_the_end: Cut) -> None:
    shares = [words.count(NEW) / len(words) for words in cut_at_the_end("store")]
    assert min(shares) == 0
    assert max(shares) > 0.8
    assert any(0.3 < share < 0.7 for share in shares)


def test_the_same_seed_loses_the_same(cut_at_the_end: Cut) -> None:
    first, again = cut_at_the_end("store", seeds=8), cut_at_the_end("store", seeds=8)
    assert sorted(first) == sorted(again)
    assert len(set(first)) > 4


def record_of(programs: Path, old_words: Path, case: str) -> Record:
    experiment = Experiment(
        program=(str(programs / "cases"), f"{{medium}}/{FILE_NAME}", case),
        prepare=("cp", str(old_words), "{medium}"),
    )
    with experiment.prepared() as template:
        return experiment.rehearse(template)


def test_useless_work_is_counted_exactly(programs: Path, old_words: Path) -> None:
    record = record_of(programs, old_words, "useless")
    text = (Path(__file__).parent / "powercut_programs" / "cases.c").read_text().splitlines()
    counts = {}
    for use in record.uses:
        line = int(short_stack(use.frames).split("cases.c:")[1].split()[0].rstrip())
        counts[text[line - 1].strip(), use.what] = (use.useless_calls, use.lines, use.clean_lines)
    assert {key: value for key, value in counts.items() if value[0]} == {
        ("pmem_persist((void*)words, LINE);  /* a useless flush, a useless drain */", "flush"): (
            1,
            1,
            1,
        ),
        ("pmem_persist((void*)words, LINE);  /* a useless flush, a useless drain */", "drain"): (
            1,
            0,
            0,
        ),
        ("pmem_flush((void*)words, LINE);    /* a useless flush */", "flush"): (1, 1, 1),
        ("pmem_drain();                      /* a useless drain */", "drain"): (1, 0, 0),
    }
    half = "pmem_flush((void*)words, 2 * LINE); /* of two lines, one is clean */"
    assert counts[half, "flush"] == (0, 2, 1)


# --- The example: a log that forgets a flush, and its correct twin.

RECORDS = 20


def log_experiment(programs: Path, name: str) -> Experiment:
    return Experiment(
        program=(str(programs / name), "{medium}/log", str(RECORDS)),
        recovery=CommandRecovery((str(programs / "check"), "{medium}/log", "{output}")),
        prepare=(str(programs / "append"), "{medium}/log", "1"),
    )


def test_kill_9_does_not_show_a_forgotten_flush(programs: Path, tmp_path: Path) -> None:
    for kill in range(20):
        log, output = tmp_path / f"log{kill}", tmp_path / f"output{kill}"
        subprocess.run([programs / "append", log, "1"], check=True, capture_output=True)
        command = [str(programs / "append_forgets"), str(log), str(RECORDS)]
        with output.open("wb") as told, subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
            assert killed.stdout is not None
            for _ in range(kill % RECORDS):
                told.write(killed.stdout.readline())
            killed.send_signal(signal.SIGKILL)
        checked = subprocess.run([programs / "check", log, output], check=False)
        assert checked.returncode == 0


def test_a_power_cut_shows_a_forgotten_flush_in_nearly_every_try(programs: Path) -> None:
    experiment = log_experiment(programs, "append_forgets")
    with experiment.prepared() as template:
        record = experiment.rehearse(template)
        moments = [[Moment(record.point_count, seed)] for seed in range(60)]
        results = run_tries(experiment, moments, template, jobs=2)
    assert results.tried == 60
    assert len(results.failures) >= 57
    assert all("damaged" in failure.outcome.message for failure in results.failures)


def test_the_correct_twin_is_right_after_a_cut_at_every_point(programs: Path) -> None:
    experiment = log_experiment(programs, "append")
    with experiment.prepared() as template:
        record = experiment.rehearse(template)
        results = run_tries(experiment, every_point(record, seeds=2), template, jobs=2)
    assert results.tried == 2 * record.point_count
    assert record.point_count == 2 + 2 * RECORDS + 1  # size, allocation; drains; exit
    assert results.failures == []
    assert results.ended_early == 0


def test_sites_are_the_same_in_every_run(programs: Path) -> None:
    experiment = log_experiment(programs, "append")
    with experiment.prepared() as template:
        first, second = experiment.rehearse(template), experiment.rehearse(template)
    assert [site.name for site in first.sites] == [site.name for site in second.sites]
    assert len(first.places) == 4  # ftruncate and posix_fallocate, two drains, the end


def test_a_replay_command_does_the_same_again(programs: Path, tmp_path: Path) -> None:
    experiment = log_experiment(programs, "append_forgets")
    with experiment.prepared() as template:
        record = experiment.rehearse(template)
        results = run_tries(experiment, sampled(record, 12), template, jobs=2)
    assert results.failures
    for failure in results.failures[:3]:
        again = subprocess.run(
            failure.replay, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert again.returncode == 1, again.stderr
        assert failure.outcome.message in again.stdout


class Counted:
    """A check that as many lines are new as the first word says."""

    def check(self, medium: Medium, _: object) -> str | None:
        content = (medium.folder / FILE_NAME).read_bytes()
        words = struct.unpack(f"<{LINES * WORDS_IN_LINE}Q", content)
        count = 0 if words[0] == OLD else words[0]
        lines = range(1, count + 1)
        lost = [line for line in lines if words[line * WORDS_IN_LINE] != NEW]
        return f"{lost} of {count} lost" if lost else None

    def as_argument(self) -> str:
        return "true"

    def remark(self) -> str:
        return ""


@pytest.mark.parametrize(("case", "is_bad"), [("slow", False), ("slow-forgets", True)])
def test_a_cut_at_any_moment_shows_a_forgotten_flush(
    programs: Path, old_words: Path, case: str, is_bad: bool
) -> None:
    experiment = Experiment(
        program=(str(programs / "cases"), f"{{medium}}/{FILE_NAME}", case),
        recovery=Counted(),
        prepare=("cp", str(old_words), "{medium}"),
    )
    with experiment.prepared() as template:
        moments = [[Moment(0, seed, after_us=500 * seed + 1)] for seed in range(20)]
        results = run_tries(experiment, moments, template, jobs=2)
    assert results.ended_early == 0  # for a program that has ended, the cut is at its end
    assert ("moment", "moment") in results.stacks
    assert (len(results.failures) > 5) == is_bad


@pytest.mark.long
def test_pmdk_s_object_list_is_right_after_every_cut(tmp_path: Path) -> None:
    program = str(compiled(EXAMPLES / "object_list.c", tmp_path, library="pmemobj"))
    experiment = Experiment(
        program=(program, "{medium}/pool", "5"),
        recovery=CommandRecovery((program, "{medium}/pool", "check", "{output}")),
        prepare=(program, "{medium}/pool", "1"),
    )
    with experiment.prepared() as template:
        record = experiment.rehearse(template)
        moments = sampled(record, 60)
        results = run_tries(experiment, moments, template, jobs=2)
        assert results.tried == 60
        assert results.failures == []
        # The list would show it if libpmemobj forgot to make its transactions durable.
        drains = [site for site in record.sites if site.what == "drain"]
        everything = experiment.without(*(site.name for site in drains))
        results = run_tries(everything, moments, template, jobs=2, enough_failures=1)
        assert results.failures


# --- Programs that load libpmem by themselves, as the engine does.


def sevens_in(seen: list[int]) -> Callable[[Path, str], None]:
    def look(medium: Path, output: str) -> None:
        sevens = (medium / "file").read_bytes().count(7)
        seen.append(sevens)
        assert "durable" not in output or sevens == loads_libpmem.BYTES

    return look


@pytest.mark.long
def test_a_program_that_loads_libpmem_by_itself_gets_the_library(power_cut: PowerCut) -> None:
    stored: list[int] = []
    power_cut(loads_libpmem.store, sevens_in(stored), prepare=loads_libpmem.make, tries=10)
    assert min(stored) == 0
    assert any(0 < sevens < loads_libpmem.BYTES for sevens in stored)
    persisted: list[int] = []
    power_cut(
        loads_libpmem.store_and_persist,
        sevens_in(persisted),
        prepare=loads_libpmem.make,
        tries=20,
        imports_once=True,
    )
    assert max(persisted) == loads_libpmem.BYTES


@pytest.mark.long
def test_stores_of_a_forked_child_are_durable_once_its_parent_persists_them(
    power_cut: PowerCut,
) -> None:
    seen: list[int] = []
    power_cut(
        loads_libpmem.store_in_a_forked_child,
        sevens_in(seen),
        prepare=loads_libpmem.make,
        tries=12,
    )
    assert min(seen) == 0
    assert max(seen) == loads_libpmem.BYTES


def test_a_forked_child_that_persists_is_an_error(power_cut: PowerCut) -> None:
    with pytest.raises(PowercutError, match=r"pmem_persist of .* in a forked child"):
        power_cut.results(
            loads_libpmem.persist_in_a_forked_child,
            sevens_in([]),
            prepare=loads_libpmem.make,
            tries=2,
        )
