"""The command `powercut`, and the fixture in a user's test."""

from __future__ import annotations

import contextlib
import ctypes.util
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lost_output import run_with_lost_output
from powercut_programs import EXAMPLES, compiled

from powercut import library as library_module
from powercut.command import main
from powercut.errors import PowercutError
from powercut.medium import new_medium
from powercut.plan import every_point, random_moments, sampled
from powercut.plugin import PowerCut
from powercut.record import CutPlace, Record

pytest_plugins = ["pytester"]

Run = Callable[..., int]

LIMIT_S = 120.0  # a limit for operations that are quick unless the computer is busy


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    compiled(EXAMPLES / "append.c", folder)
    compiled(EXAMPLES / "append.c", folder, "-DFORGET_FLUSH", name="append_forgets")
    compiled(EXAMPLES / "check.c", folder)
    return folder


@pytest.fixture
def powercut(programs: Path, tmp_path: Path) -> Run:
    """Returns a function that runs the command on an example."""

    def run(program: str, *options: str, recover: bool = True) -> int:
        check = ["--recover", f"{programs / 'check'} {{medium}}/log {{output}}"]
        prepare = ["--prepare", f"{programs / 'append'} {{medium}}/log 1"]
        common = [*prepare, "--medium", str(tmp_path), *(check if recover else [])]
        return main([*common, *options, "--", str(programs / program), "{medium}/log", "8"])

    return run


def test_it_fails_if_a_recovery_fails_and_prints_the_replay(
    powercut: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert powercut("append_forgets", "--tries", "40") == 1
    output = capsys.readouterr().out
    assert re.search(
        r"\d+ of 40 power cuts failed; 19 cut points, 4 distinct by call stack", output
    )
    assert re.search(r"record \d+ of \d+ is damaged", output)
    assert re.search(r"pmem_drain in append.c:\d+ (append|main)", output)
    assert re.search(r"-m powercut --at \d+ --seed \d+ ", output)
    assert list(tmp_path.iterdir()) == [], "a medium was left"


def test_failures_with_the_same_message_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    program = ["sh", "-c", "mkdir {medium}/a {medium}/b {medium}/c {medium}/d"]
    check = "sh -c 'cat {medium}/d/file 2>&1; test -d {medium}/a -a -d {medium}/d'"
    assert main(["--at", "5", "--seeds", "20", "--recover", check, "--", *program]) == 1
    output = capsys.readouterr().out
    failed, tried = map(int, re.search(r"(\d+) of (\d+) power cuts failed", output).groups())  # type: ignore[union-attr]
    assert (tried, failed > 5) == (20, True)
    assert output.count("cat: {medium}/d/file: No such file") == 1
    assert f"  other cuts with this message: {failed - 1}\n" in output
    assert "  lost: mkdir {medium}/" in output


def test_it_passes_the_correct_twin(powercut: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert powercut("append", "--every", "--seeds", "2") == 0
    assert "38 power cuts, all recovered" in capsys.readouterr().out


def test_a_list_has_the_names_of_sites_that_can_be_removed(
    powercut: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert powercut("append", "--list", recover=False) == 0
    sites = re.findall(r"(?:flush|drain) append\+0x[0-9a-f]+", capsys.readouterr().out)
    assert sorted(site.split()[0] for site in sites) == ["drain", "drain", "flush", "flush"]
    assert powercut("append", "--tries", "60", "--without", sites[0]) == 1


def test_a_list_shows_useless_work(powercut: Run, capsys: pytest.CaptureFixture[str]) -> None:
    powercut("append_forgets", "--list", recover=False)
    assert "8 pmem_drain (drain)" in capsys.readouterr().out


def test_all_mutations_of_the_correct_twin_are_caught(
    powercut: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert powercut("append", "--mutate") == 0
    assert "all 4 are needed" in capsys.readouterr().out


def test_rounds_continue_on_one_medium(powercut: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert powercut("append", "--rounds", "4", "--tries", "5") == 0
    assert powercut("append_forgets", "--rounds", "4", "--tries", "5") == 1
    replay = re.search(r"powercut (--at \d+ --seed \d+ ?)+", capsys.readouterr().out)
    assert replay is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give the program after `--`"),
        (["--", "true"], "give --recover COMMAND"),
        (["--list", "--", "true"], "changed nothing in {medium}"),
        (["--list", "--", "false"], "without a power cut, false ended with status 1"),
        (["--list", "--", "/not/there"], "/not/there: No such file"),
        (["--list", "--under", "/tmp", "--", "true"], "--under /tmp: is there already"),
        (["--list", "--points", "nap", "--", "true"], "points: nap is none of"),
        (["--timeout", "nan", "--list", "--", "true"], "timeout: nan must be a number of seconds"),
        (["--timeout", "1e300", "--list", "--", "true"], "timeout: 1e+300 must be a number"),
        (["--medium", "/not/there", "--list", "--", "true"], "no medium can be made"),
        (["--medium", "/tmp/co:lon", "--list", "--", "true"], "can't have a colon"),
        (["--recover", "'open", "--", "true"], "--recover 'open: No closing quotation"),
        (["--prepare", "/not/there", "--list", "--", "true"], "prepare: /not/there: No such file"),
        (
            ["--prepare", "sleep 9", "--timeout", "1", "--list", "--", "true"],
            "prepare: sleep 9: st",
        ),
        (
            ["--recover", "true", "--at", "99", "--", "touch", "{medium}/x"],
            "--at 99: the run has 2 cut points",
        ),
        (
            ["--recover", "true", "--points", "drain", "--", "touch", "{medium}/x"],
            "points: the program makes no call",
        ),
        (["--recover", "true", "--mutate", "--", "touch", "{medium}/x"], "no call that could"),
        (
            ["--recover", "true", "--seed", f"{(1 << 64) - 1}", "--", "touch", "{medium}/x"],
            "must be a number of 64 bits",
        ),
        (
            ["--recover", "false", "--", "touch", "{medium}/x"],
            "without a power cut, the recovery's check fails",
        ),
        (
            ["--list", "--", "sh", "-c", "touch {medium}/x; touch {medium}/y"],
            "a second process uses the folders of the medium",
        ),
    ],
)
def test_impossible_requests_are_errors_with_a_reason(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(options) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_program_runs_in_the_user_s_folder_whatever_modules_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('this is not the json of Python')")
    monkeypatch.chdir(tmp_path)
    assert main(["--list", "--", "cp", "json.py", "{medium}/x"]) == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["{program}", "{medium}/log"], "/static: is statically linked"),
        (["sh", "-c", "touch {medium}/x; {program} {medium}/log"], "/medium/log: was changed in"),
    ],
)
def test_a_statically_linked_program_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], message: str
) -> None:
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text(
        '#include <stdio.h>\nint main(int c, char** v) { return !fopen(v[c-1], "w"); }'
    )
    compiled(source, tmp_path, "-static", library="")
    words = [word.replace("{program}", str(program)) for word in command]
    assert main(["--list", "--", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeout", "x"], "argument --timeout: invalid float value: 'x'"),
        (["--tries", "x"], "argument --tries: x: must be a number of 1 or more"),
        (["--jobs", f"{1 << 62}"], "must be a number of 1 or more, below 2^62"),
    ],
)
def test_invalid_numbers_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        main([*options, "--", "true"])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout_s", math.nan),
        ("timeout_s", 1e300),
        ("timeout_s", -1),
        ("rounds", 0),
        ("rounds", 10**9),
        ("site_frames", 10**12),
    ],
)
def test_the_fixture_refuses_what_the_command_does(
    power_cut: PowerCut, option: str, value: float
) -> None:
    with pytest.raises(PowercutError, match=rf"{option.removesuffix('_s')}: .* must be"):
        power_cut(["touch", "{medium}/x"], ["true"], **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--every", "--at", "1"], "argument --at: not allowed with argument --every"),
        (["--at", "1", "--moments", "3"], "argument --moments: not allowed with argument --at"),
        (["--every", "--tries", "9"], "argument --tries: not allowed with argument --every"),
        (["--list", "--mutate"], "argument --mutate: not allowed with argument --list"),
        (["--list", "--at", "1"], "--at: --list cuts nothing; leave it out"),
        (["--list", "--after-us", "9"], "--after-us: --list cuts nothing; leave it out"),
        (["--seeds", "5"], "--seeds: is for --every, --at and --after-us"),
        (["--every", "--rounds", "3"], "--rounds: is for --tries"),
    ],
)
def test_options_without_an_effect_together_are_refused(
    powercut: Run, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """Otherwise `--every --at 1` would try one point, and say that all recovered."""
    try:
        status = powercut("append_forgets", *options)
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err


def test_more_tries_than_memory_holds_are_made_one_by_one() -> None:
    record = Record(3, 100, (CutPlace("drain", "f", (), (1, 2, 3)),), (), ())
    many = 10**13
    for tries in (
        sampled(record, many),
        sampled(record, many, rounds=2),
        random_moments(record, many),
        every_point(record, many),
    ):
        assert len({*map(tuple, itertools.islice(tries, 9))}) == 9


def test_a_mutation_that_changes_nothing_is_reported_with_a_seed_too(
    powercut: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cut comes only at the program's end, before which nothing is printed anyway."""
    assert powercut("append", "--mutate", "--at", "1", "--seed", "0") == 1
    assert "4 of 4 can be taken out" in capsys.readouterr().out


def test_a_folder_with_a_fixed_path_is_made_for_each_try_and_removed(
    programs: Path, tmp_path: Path
) -> None:
    fixed = tmp_path / "fixed"
    program = [str(programs / "append"), str(fixed / "log"), "3"]
    options = ["--under", str(fixed), "--points", "drain", "--every", "--names", "ordered"]
    check = f"{programs / 'check'} {fixed / 'log'} /dev/null"
    assert main([*options, "--recover", check, "--", *program]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_missing_compiler_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERCUT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library_module.library.cache_clear()
    try:
        assert main(["--list", "--", "/bin/true"]) == 2
        assert "apt-get install g++" in capsys.readouterr().err
    finally:
        library_module.library.cache_clear()


_SLOW_COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then
    echo asked >> {log}
    exit
fi
echo compiles >> {log}
until [ "$(grep -c asked {log})" = 2 ]; do sleep 0.02; done
sleep 0.2
"""


def test_processes_that_start_together_compile_the_library_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler, log = tmp_path / "slow-c++", tmp_path / "log"
    compiler.write_text(_SLOW_COMPILER.format(log=log))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("POWERCUT_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(2) as pool:  # threads wait for each other's locks as processes do
        first, second = pool.map(lambda _: library_module.library.__wrapped__(), range(2))
    assert first == second
    assert log.read_text().split().count("compiles") == 1


def test_an_unusable_cache_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library_module.library.cache_clear()
    try:
        for folder in ("/proc", "/proc/none"):
            monkeypatch.setenv("POWERCUT_CACHE", folder)
            assert main(["--list", "--", "/bin/true"]) == 2
            message = (
                f"powercut: cache folder {folder}: No such file or directory; set POWERCUT_CACHE"
            )
            assert message in capsys.readouterr().err
    finally:
        library_module.library.cache_clear()


def test_the_library_exports_all_functions_of_libpmem() -> None:
    if ctypes.util.find_library("pmem") is None:
        pytest.skip("no libpmem: apt-get install libpmem1")
    real = next(Path("/usr/lib").rglob("libpmem.so.1"))

    def exported(path: Path) -> set[str]:
        command = ["nm", "-D", "--defined-only", "--with-symbol-versions", str(path)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {line.split()[-1] for line in listed.splitlines() if "pmem_" in line}

    assert exported(real) <= exported(library_module.library())


def test_a_medium_is_removed_whatever_happens(tmp_path: Path) -> None:
    def use_and_fail() -> None:
        with new_medium(tmp_path) as medium:
            (medium.folder / "file").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_a_replay_of_a_point_that_the_run_lacks_is_an_error(
    powercut: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert powercut("append_forgets", "--at", "99", "--seed", "0") == 2
    assert "the program ended before the power went" in capsys.readouterr().err


def test_a_replay_without_an_unknown_call_is_an_error(
    powercut: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert powercut("append", "--at", "1", "--seed", "0", "--without", "flush nowhere") == 2
    assert "without: flush nowhere: no such call; --list shows all" in capsys.readouterr().err


def test_tries_that_all_end_before_the_cut_are_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example is a program that remembers outside of the medium that its work is done."""
    done = tmp_path / "done"
    program = f"test -e {done} || echo 1 > {{medium}}/file; touch {done}"
    assert main(["--recover", "true", "--tries", "3", "--", "sh", "-c", program]) == 2
    assert "the program ended before the power went" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("slow", ["program", "check"])
def test_a_signal_ends_all_tries_at_once_and_leaves_nothing(
    tmp_path: Path, cache: Path, slow: str, number: signal.Signals
) -> None:
    """It must not wait for programs and checks, since the sender of the signal sends
    SIGKILL next.
    """
    base, ran = tmp_path / "base", tmp_path / "ran"
    base.mkdir()
    sleep = f"sleep 500.{os.getpid()}"  # unique to this run of the tests
    # The run without a cut makes the file, so only tries are slow.
    sleeps = f"test -e {ran} && {sleep}; touch {ran}"
    program, check = "echo 1 > {medium}/file", "true"
    if slow == "program":
        program = f"{program}; {sleeps}"
    else:
        check = f"sh -c {shlex.quote(sleeps)}"
    command = [sys.executable, "-m", "powercut", "--medium", str(base), "--recover", check]
    command += ["--points", "exit", "--jobs", "2", "--", "sh", "-c", program]
    environment = {**os.environ, "POWERCUT_CACHE": str(cache)}
    with subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has SIGHUP ignored
    ) as powercut:
        wait_for(lambda: len(processes_of(sleep)) == 2)
        powercut.send_signal(number)
        assert powercut.wait(timeout=LIMIT_S) == 128 + number
    assert processes_of(sleep) == []
    assert list(base.iterdir()) == []


def test_processes_of_a_check_are_neither_waited_for_nor_left_running(tmp_path: Path) -> None:
    started, sleep = time.monotonic(), f"sleep 501.{os.getpid()}"
    options = ["--medium", str(tmp_path), "--tries", "2", "--timeout", str(LIMIT_S)]
    program = ["--", "sh", "-c", "echo 1 > {medium}/file"]
    own_session = f"setsid {sleep} & sleep 0.1"
    for check in (f"{sleep} & true", own_session):
        assert main([*options, "--recover", f"sh -c '{check}'", *program]) == 0
    options[-1] = "0.5"
    assert main([*options, "--recover", f"sh -c '{sleep}; true'", *program]) == 2
    assert processes_of(sleep) == []
    assert time.monotonic() - started < 3 * LIMIT_S


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def processes_of(command: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().rstrip(b"\0") == command.replace(" ", "\0").encode():
                found.append(path.parent.name)
    return found


# --- The fixture.

_TEST = """
from pathlib import Path
import os

def app(medium: Path) -> None:
    with (medium / "file").open("wb") as file:
        file.write(b"x" * 100)
        file.flush()
        {sync}
    folder = os.open(medium, os.O_RDONLY)
    os.fsync(folder)
    print("done", flush=True)

def recover(medium: Path, output: str) -> None:
    assert "done" not in output or (medium / "file").read_bytes() == b"x" * 100, "it is lost"

def test_mine(power_cut):
    assert power_cut(app, recover, tries=10).tried == 10
"""


@pytest.fixture(scope="module")
def cache() -> Path:
    """The cache folder of this run; pytester's runs have another home and would not find it."""
    return library_module.cache_folder()


@pytest.fixture
def run_test(
    cache: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pytest.RunResult]:
    monkeypatch.setenv("POWERCUT_CACHE", str(cache))

    def run(sync: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(_TEST.format(sync=sync))
        plugin = ("-p", "no:pmemlab", "-p", "no:powercut", "-p", "powercut.plugin")
        return pytester.runpytest_subprocess(*plugin, *options)

    return run


def test_a_test_with_the_fixture_passes_where_all_is_synced(
    run_test: Callable[..., pytest.RunResult],
) -> None:
    run_test("os.fsync(file.fileno())").assert_outcomes(passed=1)


@pytest.mark.long
def test_a_test_with_the_fixture_fails_with_commands_that_replay(
    run_test: Callable[..., pytest.RunResult],
) -> None:
    result = run_test("pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*of 10 power cuts failed*"])
    output = result.stdout.str()
    assert "AssertionError: it is lost" in output
    replay = re.search(r"^E?\s*(PYTHONPATH=\S+ \S+ -m powercut --at .*)$", output, re.MULTILINE)
    assert replay is not None
    assert "call_function" in replay.group(1)


def test_the_number_of_cuts_can_be_chosen_for_all_tests(
    run_test: Callable[..., pytest.RunResult],
) -> None:
    result = run_test("os.fsync(file.fileno())", "--power-cuts=3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tried=3*"])


def test_mutations_use_the_numbers_of_cuts_and_rounds(
    power_cut: PowerCut, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check always passes, so all tries are made."""
    monkeypatch.setattr(pytestconfig.option, "power_cuts", 3)
    checked: list[Path] = []
    program = [sys.executable, "-c", _SYNCED, "{medium}/file"]
    found = power_cut.mutations(program, lambda medium, _: checked.append(medium), rounds=2)
    assert [mutation.tried for mutation in found] == [3]
    assert len(checked) == 1 + 3 * 2, "once without a cut, and after each round"


_SYNCED = """
import os, sys
with open(sys.argv[1], "w") as file:
    os.fsync(file.fileno())
"""


def test_a_command_may_be_one_text(power_cut: PowerCut) -> None:
    program, check = "sh -c 'echo 1 > {medium}/file'", "test -d {medium}"
    assert power_cut(program, check, prepare="touch {medium}/file", tries=4).tried == 4
    with pytest.raises(PowercutError, match="app sh -c 'echo: No closing quotation"):
        power_cut("sh -c 'echo", check)


def test_the_time_limit_applies_to_a_check_by_a_command(power_cut: PowerCut) -> None:
    program = ["sh", "-c", "echo 1 > {medium}/file"]
    with pytest.raises(PowercutError, match="sleep 500: still running after 3 s"):
        power_cut(program, ["sleep", "500"], timeout_s=3)


def test_a_medium_without_room_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No file can grow, so the library can write neither its record nor its error.
    script = "trap '' XFSZ; ulimit -f 0; mkdir {medium}/folder"
    assert main(["--list", "--medium", str(tmp_path), "--", "sh", "-c", script]) == 2
    assert f"powercut: {tmp_path}: has no room for what powercut keeps" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--list"], ["--help"]], ids=["list", "help"])
def test_output_that_can_not_be_written_is_told_without_a_traceback(
    programs: Path, argv: list[str]
) -> None:
    append = [str(programs / "append"), "{medium}/log", "8"]
    program = [sys.executable, "-m", "powercut", *argv, "--", *append]
    assert run_with_lost_output(program, unbuffered="") == [
        (1, ""),
        (2, "powercut: [Errno 28] No space left on device\n"),
    ]
