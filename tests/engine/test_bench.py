"""Each benchmark runs with a tiny workload, and its figures have one shape."""

from __future__ import annotations

import argparse
import errno
import gc
import hashlib
import json
import math
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interpreter import run_python
from numpy.typing import NDArray

import embstore as es
from embstore import _core
from embstore.bench import _yardsticks, computer_limits, measure, peers_suite
from embstore.bench.__main__ import SUITES, main
from embstore.bench.arguments import add_arguments, options
from embstore.bench.contenders import Embstore
from embstore.bench.durability_suite import TABLE_OF_RUN
from embstore.bench.memory_process import dram_bytes
from embstore.bench.memory_suite import TIERS
from embstore.bench.peers_suite import NAMES
from embstore.bench.separate_process import call_in_separate_process
from embstore.bench.stores import STORE_NAMES, Lmdb, RocksDb, Sizes
from embstore.bench.tables import table

TINY = ["--rows", "2000", "--batch-size", "500", "--batches", "2", "--rounds", "1"]
FEW = ["--rows", "20000", "--dim", "5", "--store", "DRAM_SSDHASH"]
TINY_TIERS = [*TINY, "--dim", "5", "--served-batches", "2"]


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    before = es.get_num_threads()
    yield
    es.set_num_threads(before)


@pytest.fixture(autouse=True)
def _contenders_need_no_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "IDLE_FOR_S", 0.002)


def figures_of(arguments: list[str], folder: Path) -> dict[str, Any]:
    written = folder / "figures.json"
    main([*arguments, "--json", str(written)])
    document: dict[str, Any] = json.loads(written.read_text())
    assert document["machine"]["cpus"] >= 1
    return document


def positive(figure: dict[str, float]) -> bool:
    return 0 < figure["minimum"] <= figure["median"] <= figure["maximum"]


def test_the_module_of_tables_has_nothing_that_only_benchmarks_need() -> None:
    yardsticks = {"HandWrittenTable", "LevelDbStore", "TierAlone"}
    assert yardsticks <= set(dir(_yardsticks))
    assert not yardsticks & set(dir(_core))
    imports = "import sys, embstore; print([name for name in sys.modules if 'bench' in name])"
    done = run_python(imports)
    assert done.stdout == "[]\n", done.stderr


def test_asking_for_help_imports_no_large_package() -> None:
    large = "{'torch', 'ray', 'keras'}"
    imports = f"import sys, embstore.bench.__main__; print({large} & {{*sys.modules}})"
    done = run_python(imports)
    assert done.stdout == "set()\n", done.stdout + done.stderr


def test_errors_of_the_yardsticks_are_the_engines(tmp_path: Path) -> None:
    with pytest.raises(es.errors.InvalidArgumentError, match="there is no tier TAPE in files"):
        _yardsticks.TierAlone("TAPE", str(tmp_path), 4, slot_count=1, row_count=1, direct=False)
    table = _yardsticks.HandWrittenTable(8, 4)
    with pytest.raises(es.errors.InvalidArgumentError, match=r"rows: shape \(2, 3\)"):
        table.insert(np.arange(2), np.zeros((2, 3), np.float32))


def test_bags_of_pytorch_are_compared_in_each_case(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads(), es.get_num_threads()
    small = "--rows 50 --features 3 --batch-size 4 --most-ids 3 --batches 2 --rounds 1"
    document = figures_of(["torch", *small.split()], tmp_path)
    assert list(document["bags"]) == ["one id", "1 to 3 ids"]
    for operations in document["bags"].values():
        assert list(operations) == ["forward", "step"]
        for figures in operations.values():
            assert list(figures) == ["torch.nn.EmbeddingBag", "EmbeddingBagCollection"]
            assert all(positive(figure) for figure in figures.values())
    assert (torch.get_num_threads(), es.get_num_threads()) == threads


@pytest.mark.parametrize("suite", [[], ["rows"]])
def test_the_suite_rows_runs_if_none_is_named(suite: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    document = figures_of([*suite, *TINY, "--dim", "5", "--threads", "1"], tmp_path)
    assert document["suite"] == "rows"
    assert {result["contender"] for result in document["results"]} == {
        "embstore",
        "embstore, 26 variables",
        "hand-written loop",
        "PyTorch",
    }
    assert all(positive(result["ids_per_s"]) for result in document["results"])


def test_rows_measures_small_calls_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sizes = ["--batch-size", "100", "1", "--small-batches", "20", "--clock", "process"]
    document = figures_of(["rows", *TINY, *sizes, "--dim", "5", "--threads", "1"], tmp_path)
    contenders: dict[int, set[str]] = {1: set(), 100: set()}
    for result in document["results"]:
        contenders[result["batch_size"]].add(result["contender"])
        assert positive(result["ids_per_s"])
        rate = result["ids_per_s"]["median"]
        assert result["us_per_batch"] == pytest.approx(1e6 * result["batch_size"] / rate)
    assert contenders[100] - contenders[1] == {"embstore, 26 variables"}
    assert {"embstore", "hand-written loop", "PyTorch"} <= contenders[1]


def test_rows_measures_large_calls_that_threads_share_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sizes = ["--batch-size", "10000", "100", "--small-batches", "20"]
    document = figures_of(["rows", *TINY, *sizes, "--dim", "5", "--threads", "1", "2"], tmp_path)
    shared = [result for result in document["results"] if "shared" in result["contender"]]
    assert {(result["threads"], result["batch_size"]) for result in shared} == {(1, 10_000)}
    assert {result["contender"].partition(", calls")[0] for result in shared} == {
        "embstore",
        "embstore, 26 variables",
        "PyTorch",
    }
    assert es.get_num_threads() == 1  # calls that aren't shared use one thread


def test_threads_of_one_contender_cost_the_next_one_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "IDLE_FOR_S", 0.05)
    spinning: list[threading.Thread] = []

    def spin(has_begun: threading.Event) -> None:
        while time.thread_time() < 0.2:
            hashlib.sha256(bytes(1 << 16))  # without the GIL
            has_begun.set()

    def leave_a_thread_behind() -> None:
        has_begun = threading.Event()
        spinning.append(threading.Thread(target=spin, args=(has_begun,)))
        spinning[-1].start()
        has_begun.wait()

    figures = measure.compare(
        {"spins": [leave_a_thread_behind], "waits": [lambda: time.sleep(0.05)]},
        1,
        yardstick="waits",
        rounds=1,
        on_round=lambda: None,
        clock="process",
    )
    for thread in spinning:
        thread.join()
    assert 1 / figures["waits"].median < 0.01  # its sleep takes no CPU time


def test_tiers_measures_every_store_or_says_why_not(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    document = figures_of(["tiers", *TINY_TIERS, "--path", str(files)], tmp_path)

    measured = {result["store"]: result for result in document["stores"]}
    missing = {one["store"]: one["reason"] for one in document["unavailable"]}
    assert measured.keys() | missing.keys() == set(STORE_NAMES)
    assert not measured.keys() & missing.keys()
    assert all(missing.values())
    assert {"DRAM", "DRAM_SSDHASH"} <= measured.keys()

    for result in measured.values():
        assert positive(result["training_lookups_per_s"])
        assert positive(result["lookups_per_s"])
        assert positive(result["steps_per_s"])
        assert result["lookups_per_s"]["ratio"] > 0
        if result["store"].startswith("DRAM_"):  # its rows move between tiers
            assert positive(result["settled_lookups_per_s"])
            assert positive(result["settled_steps_per_s"])
            assert 0 < result["settled_lookup_hit_rate"] < 1
        elif result["store"] != "DRAM":
            assert result["settled_lookups_per_s"] is None
            assert result["settled_steps_per_s"] is None
    assert measured["DRAM"]["lookups_per_s"]["ratio"] == 1
    assert measured["DRAM"]["lookup_hit_rate"] == 1
    assert 0 < measured["DRAM_SSDHASH"]["lookup_hit_rate"] < 1
    assert measured["DRAM_SSDHASH"]["index_bytes"] > 0
    assert measured["DRAM_SSDHASH"]["file_bytes"] > 0
    assert not list(files.iterdir())


def test_tiers_in_files_are_measured_beside_leveldb(tmp_path: Path) -> None:
    document = figures_of(["tiers", *TINY_TIERS, "--store", "DRAM"], tmp_path)
    missing = {one["store"] for one in document["unavailable"]}
    tiers = {(result["tier"], result["operation"]): result for result in document["file_tiers"]}
    assert {tier for tier, _ in tiers} | missing == {"SSDHASH", "LEVELDB", "LevelDB"}
    assert ("SSDHASH", "read") in tiers
    assert ("SSDHASH", "write") in tiers
    assert all(positive(result["rows_per_s"]) for result in tiers.values())
    assert [result["store"] for result in document["stores"]] == ["DRAM"]


def test_each_goal_says_whether_it_is_reached(tmp_path: Path) -> None:
    stores = ["--store", "DRAM_PMEM", "DRAM_SSDHASH"]
    document = figures_of(["tiers", *TINY_TIERS, *stores], tmp_path)
    assert {
        "lookups of DRAM_PMEM in settled serving, to DRAM",
        "lookups of DRAM_SSDHASH in training, to DRAM",
        "lookups of DRAM_SSDHASH in settled serving, to DRAM",
        "index, bytes a row",
    } <= {goal["what"] for goal in document["goals"]}
    for goal in document["goals"]:
        reached = goal["value"] >= (goal["at_least"] or 0) and goal["value"] <= (
            goal["at_most"] or float("inf")
        )
        assert goal["reached"] == reached


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures this computer's limits in less time and memory."""
    small = {"MEMORY_BYTES": 1 << 22, "FILE_BYTES": 1 << 22, "MEASURED_FOR_S": 0.01}
    for name, value in small.items():
        monkeypatch.setattr(computer_limits, name, value)


@pytest.mark.usefixtures("small_limits")
def test_peers_measures_all_that_are_installed_and_the_computers_limits(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    document = figures_of(["peers", *TINY, "--dim", "5", "--path", str(files)], tmp_path)
    measured = {result["peer"] for result in document["results"]}
    assert measured | document["unavailable"].keys() == set(NAMES)
    assert not measured & document["unavailable"].keys()
    assert {"embstore", "hand-written loop", "DRAM_SSDHASH"} <= measured
    assert len(document["results"]) == 2 * len(measured)
    assert all(positive(result["ids_per_s"]) for result in document["results"])
    assert len(document["limits"]) == computer_limits.LIMIT_COUNT
    assert all((limit["rate"] or 0) > 0 or limit["why_not"] for limit in document["limits"])
    assert not list(files.iterdir())


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("lie", ["lookup", "train"])
def test_a_peer_that_is_fast_and_wrong_is_found_out(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Liar(Embstore):
        def lookup(self, ids: Any, out: NDArray[np.float32]) -> NDArray[np.float32]:
            return out if lie == "lookup" else super().lookup(ids, out)

        def train(self, ids: Any, out: Any, grads: NDArray[np.float32]) -> None:
            super().train(ids, out, 0 * grads if lie == "train" else grads)

    monkeypatch.setitem(peers_suite.IN_MEMORY, "embstore", Liar)
    with pytest.raises(SystemExit, match="embstore has other rows than the hand-written loop"):
        main(["peers", *TINY, "--dim", "5", "--peer", "embstore"])


@pytest.mark.parametrize("storage_type", ["DRAM_PMEM", "DRAM_PMEM_SSDHASH"])
def test_durability_times_checkpoints_and_restores(storage_type: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    arguments = ["durability", *TINY, "--dim", "5", "--storage-type", storage_type]
    document = figures_of([*arguments, "--path", str(files)], tmp_path)

    runs = {run["run"]: run for run in document["runs"]}
    assert all(positive(run["batches_per_s"]) for run in runs.values())
    with_checkpoints = {run for run, result in runs.items() if result["call_s"] is not None}
    assert with_checkpoints == {"persist()", "save()", "save_incremental()"}
    assert all((runs[run]["cost_s"] is not None) == (run in with_checkpoints) for run in runs)
    assert document["restore_persisted_s"] > 0
    assert document["restore_s"] > 0
    assert len(document["goals"]) == 3
    assert not list(files.iterdir())


@pytest.mark.parametrize("storage_type", ["HBM_DRAM_PMEM", "HBM_DRAM_PMEM_SSDHASH"])
def test_durability_on_an_emulated_gpu_is_tried_and_not_timed(
    storage_type: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updates: list[str] = []
    apply_gradients = es.EmbeddingVariable.apply_gradients

    def noted(variable: es.EmbeddingVariable, ids: Any, grads: Any, *step: Any) -> None:
        updates.append(ids.device if isinstance(ids, es.DeviceArray) else "host")
        apply_gradients(variable, ids, grads, *step)

    monkeypatch.setattr(es.EmbeddingVariable, "apply_gradients", noted)
    arguments = ["durability", *TINY, "--dim", "5", "--storage-type", storage_type]
    document = figures_of([*arguments, "--device", "emulated"], tmp_path)

    assert document["kind"] == "functional-only"
    assert [run["run"] for run in document["runs"]] == list(TABLE_OF_RUN)
    # No key may name a time, a rate or a ratio.
    text = json.dumps({name: part for name, part in document.items() if name != "options"})
    assert not re.search(r"_s\b|per_s|ratio|seconds|goals", text)
    printed = capsys.readouterr().out
    assert "functional-only" in printed
    assert "restore_persisted()" in printed
    assert not re.search(r"batches/s|\bms\b|seconds", printed)
    assert (
        updates.count("emulated") == len(TABLE_OF_RUN) * 2 * 2
    )  # 2 batches, and 2 rounds with the first


# For each suite, every argument, with a value other than its default.
EVERY_ARGUMENT = {
    "rows": "--rows 3 --dim 4 5 --batch-size 6 7 --threads 8 --batches 9 --small-batches 11 "
    "--rounds 12 --seed 13 --keys dense --clock process",
    "tiers": "--rows 3 --dim 4 5 --first-tier .3 --skew 1.5 --batch-size 6 --batches 7 --rounds 8 "
    "--warm-up-batches 9 --served-batches 11 --store LMDB DRAM --path / --direct --clock process "
    "--seed 13",
    "peers": "--rows 3 --dim 4 5 --first-tier .3 --batch-size 6 --batches 7 --rounds 8 "
    "--peer LMDB TFRA --path / --clock process --seed 13",
    "memory": "--rows 3 --dim 4 --store DRAM_PMEM --path / --seed 13 --keys dense",
    "durability": "--storage-type DRAM_PMEM_SSDHASH --device cuda:3 --rows 3 --dim 4 "
    "--first-tier .3 --pool .4 --batch-size 6 --batches 7 --rounds 8 --path / --seed 13",
    "gpu": "--device cuda:3 --rows 3 --dim 4 5 --batch-size 6 --fraction .3 --settling-batches 7 "
    "--batches 8 --rounds 9 --seed 13",
    "keras": "--rows 3 --dim 4 --batch-size 6 --features 7 --steps 8 --rounds 9 --skew 1.5 "
    "--seed 13",
    "torch": "--rows 3 --dim 4 --features 5 --batch-size 6 --most-ids 7 --batches 9 --rounds 11 "
    "--skew 1.5 --seed 13 --clock process",
    "cluster": "--rows 3 --dim 4 --shards 5 6 --batch-size 7 --batches 8 --rounds 9 --seed 13 "
    "--tables 11 --samples 12",
}


@pytest.mark.parametrize("name", SUITES)
def test_every_argument_of_a_suite_is_among_its_options(name: str) -> None:
    parser = argparse.ArgumentParser()
    kind = SUITES[name].OPTIONS
    add_arguments(parser, kind)
    given = EVERY_ARGUMENT[name].split()
    flags = {action.option_strings[-1] for action in parser._actions} - {"--help"}
    assert {each for each in given if each.startswith("--")} == flags
    changed, default = asdict(options(kind, parser.parse_args(given))), asdict(kind())
    assert sum(changed[field] != default[field] for field in default) == len(flags)
    hash(options(kind, parser.parse_args(given)))  # works only if lists became tuples


def test_a_section_of_a_table_begins_where_the_setting_changes() -> None:
    cells = [("8", "read", "1"), ("8", "read", "2"), ("8", "write", "3"), ("16", "write", "4")]
    names, figures = ("dim", "operation"), ("rate",)
    ends = {
        section: [row.end_section for row in table("", names, figures, cells, section=section).rows]
        for section in (0, 1, 2)
    }
    assert ends == {
        0: [False, False, False, False],
        1: [False, False, True, False],
        2: [False, True, True, False],
    }


def test_the_failure_of_a_measuring_process_is_reported() -> None:
    assert call_in_separate_process(dict, {"rows": 3}, "rows") == {"rows": 3}
    with pytest.raises(RuntimeError, match="the process that measures a table ended with 1"):
        call_in_separate_process(math.sqrt, {"rows": 3}, "a table")  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["tiers", "--path", str(tmp_path / "none")])
    assert "is no directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rows", "--seed", "-1"], "--seed: must be 0 or more, got -1"),
        (["tiers", "--skew", "nan"], "--skew: must be finite, 0 or more, got nan"),
        (["keras", "--skew", "-1"], "--skew: must be finite, 0 or more, got -1"),
        (["rows", "--json", "/"], "--json: / is a directory; give a file"),
        (["rows", "--rows", "1e6"], "--rows: must be a positive whole number, got 1e6"),
        (["tiers", "--bogus"], "bench tiers: error: unrecognized arguments: --bogus"),
        (["many_tables"], "SUITE: invalid choice: 'many_tables' (choose from "),
    ],
)
def test_arguments_that_can_not_be_measured_or_written_are_refused_at_once(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err


def test_figures_that_can_not_be_written_are_printed_with_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="--json /dev/full: can't be written: No space left"):
        main(["rows", *TINY, "--json", "/dev/full"])
    assert "Million ids" in capsys.readouterr().out


def test_figures_are_written_even_if_the_output_of_the_tables_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "figures.json"
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(SystemExit) as ended:
        main(["memory", *FEW, "--path", str(tmp_path), "--json", str(written)])
    assert ended.value.code == 1
    closed.close()  # must have nothing left to write
    assert json.loads(written.read_text())["suite"] == "memory"


def test_an_interrupted_write_leaves_the_figures_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    written = tmp_path / "figures.json"
    written.write_text("before")
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["rows", *TINY, "--json", str(written)])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("figures.json", "before")
    ]


@pytest.mark.parametrize("piped", [True, False])
def test_figures_go_to_stdout_before_the_tables(tmp_path: Path, piped: bool) -> None:
    path = tmp_path / "out.txt"
    suite = ["tiers", *TINY_TIERS, "--store", "DRAM"]
    argv = [sys.executable, "-m", "embstore.bench", *suite, "--json", "/dev/stdout"]
    with path.open("w") as out:
        stdout = subprocess.PIPE if piped else out
        done = subprocess.run(argv, stdout=stdout, text=True, check=True)
    printed = done.stdout if piped else path.read_text()
    document, end = json.JSONDecoder().raw_decode(printed)
    assert document["suite"] == "tiers"
    assert "Adagrad, batches/s" in printed[end:]
    assert [*tmp_path.iterdir()] == [path]


def test_a_full_disk_leaves_the_figures_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(path: Path, text: str, *_: object, **__: object) -> int:
        with path.open("w") as file:
            file.write(text[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    written = tmp_path / "figures.json"
    written.write_text("before")
    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(SystemExit, match="can't be written: No space left"):
        main(["memory", *FEW, "--path", str(tmp_path), "--json", str(written)])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("figures.json", "before")
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tiers", "--rows", "1"], "--rows 1, --first-tier 0.1: leave no row below the first tier"),
        (["tiers", "--rows", "3", "--first-tier", ".9"], "--first-tier 0.9: leave no row below"),
        (
            ["tiers", *TINY, "--first-tier", ".8", "--store", "DRAM_PMEM_SSDHASH"],
            "--first-tier 0.8: leaves the last of DRAM_PMEM_SSDHASH's three tiers no row beside",
        ),
        (["memory", "--rows", "1"], "--rows 1: must be 2 or more"),
        (["durability", "--rows", "1"], "--rows 1, --first-tier 0.1: leave the first tier no row"),
        (
            ["durability", "--storage-type", "DRAM_PMEM_SSDHASH", "--rows", "9", "--pool", ".1"],
            "--rows 9, --first-tier 0.1: leave the first tier no row",
        ),
        (
            ["durability", "--storage-type", "DRAM_PMEM_SSDHASH", "--rows", "10", "--pool", ".01"],
            "--rows 10, --pool 0.01: leave the pool no row",
        ),
    ],
)
def test_too_few_rows_are_refused_with_the_option_s_name(
    arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit, match=complaint):
        main(arguments)


def test_a_full_disk_ends_key_value_stores_with_the_engine_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB writes into a mapping of its file, where a full disk would kill the process."""

    class Full:
        def get(self, *_: object) -> None:
            raise Exception("IO error: No space left on device")

        write = get

    sizes = Sizes(rows=100, first_tier_rows=10, second_of_three_rows=30, dim=4)
    keys = np.arange(100)
    pytest.importorskip("rocksdict")
    pytest.importorskip("lmdb")
    (tmp_path / "rows").mkdir()
    rows = tmp_path / "rows"
    with closing(RocksDb(keys, sizes, rows)) as rocks, monkeypatch.context() as patched:
        patched.setattr(rocks, "_database", Full())
        for call in (rocks.load, lambda: rocks.read(rocks.ids_of(keys))):
            with pytest.raises(es.errors.StorageError, match="RocksDB: IO error: No space left"):
                call()
    with closing(Lmdb(keys, sizes, tmp_path)) as lmdb, monkeypatch.context() as patched:
        nothing = SimpleNamespace(f_bavail=3, f_frsize=4096)
        patched.setattr(os, "statvfs", lambda _: nothing)
        with pytest.raises(es.errors.StorageError, match=r"LMDB: .* has 12288 bytes left, and a "):
            lmdb.load()
        patched.undo()
        lmdb.load()
        assert lmdb.read(lmdb.ids_of(keys)).shape == (100, 8)


def test_a_contender_can_be_made_without_rows() -> None:
    Embstore(np.empty(0, np.int64), 4).close()


def test_a_benchmark_that_is_ended_leaves_no_files(tmp_path: Path) -> None:
    suite = ["tiers", "--rows", "100000", "--batch-size", "10000", "--path", str(tmp_path)]
    command = [sys.executable, "-m", "embstore.bench", *suite]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        began = time.monotonic()
        # Waits for a file of a store: its folder appears before the benchmark knows that it made
        # one.
        while not any(path.is_file() for path in tmp_path.rglob("*")):
            assert process.poll() is None
            assert time.monotonic() - began < 60
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_memory_says_what_a_row_takes_in_every_tier(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    document = figures_of(["memory", "--rows", "30000", "--path", str(files)], tmp_path)

    measured = {(tier["storage_type"], tier["tier"]): tier for tier in document["tiers"]}
    missing = {one["storage_type"] for one in document["unavailable"]}
    assert measured.keys() | {(tier.storage_type, tier.kind) for tier in TIERS} == {
        (tier.storage_type, tier.kind) for tier in TIERS
    }
    assert {storage_type for storage_type, _ in measured} | missing == {
        tier.storage_type for tier in TIERS
    }
    assert ("DRAM_SSDHASH", "SSDHASH") in measured
    for tier in measured.values():
        assert tier["rows"] >= 30000 - 256
        # The index lies in DRAM and has a key of 8 bytes a row, or an equivalent of it.
        assert 5 < tier["index_bytes"] < tier["dram_bytes"]
        assert tier["reached"] == (tier["dram_bytes"] <= tier["at_most"])
    assert not list(files.iterdir())


def test_the_index_of_dense_keys_is_smaller(tmp_path: Path) -> None:
    def index_bytes(keys: str) -> float:
        arguments = ["memory", "--rows", "20000", "--store", "DRAM_SSDHASH", "--keys", keys]
        document = figures_of([*arguments, "--path", str(tmp_path)], tmp_path)
        return float(document["tiers"][0]["index_bytes"])

    assert 6 < index_bytes("dense") < 0.7 * index_bytes("hashed")


def test_memory_has_no_goal_for_other_dims(tmp_path: Path) -> None:
    arguments = ["memory", "--rows", "20000", "--dim", "5", "--store", "DRAM_SSDHASH"]
    document = figures_of([*arguments, "--path", str(tmp_path)], tmp_path)
    (tier,) = document["tiers"]
    assert tier["at_most"] is None
    assert tier["reached"] is None


def test_dram_bytes_count_touched_memory_but_no_files(tmp_path: Path) -> None:
    size, slack = 32 << 20, 2 << 20
    gc.collect()  # garbage of earlier tests would go meanwhile
    before = dram_bytes()
    reserved = mmap.mmap(-1, size)  # shared, without a file
    assert abs(dram_bytes() - before) < slack
    reserved.write(b"x" * size)
    assert abs(dram_bytes() - before - size) < slack
    # Private, like a heap; memory that malloc has free may have been touched before.
    private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    private.write(b"x" * size)
    assert abs(dram_bytes() - before - 2 * size) < slack
    reserved.close()
    assert abs(dram_bytes() - before - size) < slack

    file = tmp_path / "file"
    file.write_bytes(b"x" * size)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), size) as mapped:
        mapped.write(b"y" * size)
        assert abs(dram_bytes() - before - size) < slack
    private.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_memory_refuses_files_that_lie_in_memory() -> None:
    with pytest.raises(SystemExit, match="/dev/shm is on tmpfs, which is memory"):
        main(["memory", "--path", "/dev/shm"])
