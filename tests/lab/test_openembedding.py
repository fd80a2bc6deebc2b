"""The model of PMem-based OpenEmbedding: its fit, and the predictions that follow from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.errors import LabError
from pmemlab.model.fidelity.openembedding import openembedding_sections
from pmemlab.model.openembedding import prediction
from pmemlab.model.openembedding import published as published_module
from pmemlab.model.openembedding.accesses import CacheAccesses, TouchedRows
from pmemlab.model.openembedding.fit import FitInputs, fit_step
from pmemlab.model.openembedding.memory_times import RowTimes
from pmemlab.model.openembedding.model import Engine, EpochModel
from pmemlab.model.openembedding.prediction import Predictor, Question
from pmemlab.model.openembedding.published import load_published
from pmemlab.model.openembedding.setup import load_setup

PAPER = FitInputs(dram_4=1.0, dram_8=0.60, dram_16=0.35, hash_4=2.16)
DRAM = RowTimes(
    load_ns=2, store_ns=3, lone_load_ns=100, lone_store_ns=90, scan_ns=40, lookup_ns=100
)
PMEM = RowTimes(
    load_ns=7, store_ns=30, lone_load_ns=305, lone_store_ns=90, scan_ns=90, lookup_ns=305
)
SETUP = load_setup()
MODEL = EpochModel(SETUP, fit_step(PAPER), DRAM, PMEM)
ACCESSES = CacheAccesses(misses=0.1363, promotions=0.136, demotions=0.136, late_updates=0.0)
NO_MISSES = CacheAccesses(misses=0.0, promotions=0.0, demotions=0.0, late_updates=0.0)
ALL_MISSES = CacheAccesses(misses=1.0, promotions=1.0, demotions=1.0, late_updates=1.0)
PUBLISHED_FILE = Path(published_module.__file__).with_name("published.yaml")
SETUP_FILE = PUBLISHED_FILE.with_name("setup.yaml")
# Every row is touched once and never again.
EACH_ROW_ONCE = TouchedRows(accesses=(0.001, 100.0), rows=(0.001, 100.0))


def test_the_fit_reproduces_its_four_input_times() -> None:
    assert MODEL.relative_time(Engine.DRAM_PS, 4) == pytest.approx(1.0)
    assert MODEL.relative_time(Engine.DRAM_PS, 8) == pytest.approx(0.60)
    assert MODEL.relative_time(Engine.DRAM_PS, 16) == pytest.approx(0.35)
    assert MODEL.relative_time(Engine.PMEM_HASH, 4) == pytest.approx(2.16)


@given(
    base=st.floats(0.1, 2),
    doubling=st.floats(0, 1),
    gpu=st.floats(0, 1),
    hash_gpu=st.floats(0, 1),
)
def test_the_fit_finds_the_coefficients_that_generated_the_times(
    base: float, doubling: float, gpu: float, hash_gpu: float
) -> None:
    steps = {4: base + 2 * doubling + 4 * gpu, 8: base + 3 * doubling + 8 * gpu}
    steps[16] = base + 4 * doubling + 16 * gpu
    times = {gpus: step * 4 / gpus / steps[4] for gpus, step in steps.items()}
    fit = fit_step(FitInputs(times[4], times[8], times[16], 1 + 4 * hash_gpu))
    assert fit.doubling * steps[4] == pytest.approx(doubling, abs=1e-9)
    assert fit.dram_gpu * steps[4] == pytest.approx(gpu, abs=1e-9)
    assert fit.hash_gpu == pytest.approx(hash_gpu, abs=1e-9)


@pytest.mark.parametrize("times", [FitInputs(1.0, 0.4, 0.35, 2.16), FitInputs(1.0, 0.6, 0.35, 0.9)])
def test_impossible_times_are_refused(times: FitInputs) -> None:
    with pytest.raises(LabError, match=r"of DRAM-PS on|of PMem-Hash on"):
        fit_step(times)


@pytest.mark.parametrize("gpus", [1, 4, 16, 64])
def test_the_pipelined_cache_is_slower_than_dram_and_faster_than_a_cache_on_the_path(
    gpus: int,
) -> None:
    dram = MODEL.relative_time(Engine.DRAM_PS, gpus)
    beside = MODEL.relative_time(Engine.PMEM_OE, gpus, ACCESSES)
    on_path = MODEL.relative_time(Engine.ORI_CACHE, gpus, ACCESSES)
    assert dram < beside < on_path < MODEL.relative_time(Engine.PMEM_HASH, gpus)


@pytest.mark.parametrize("gpus", [1, 4, 16])
def test_a_cache_of_all_rows_costs_nothing_over_dram(gpus: int) -> None:
    dram = MODEL.step_ms(Engine.DRAM_PS, gpus)
    assert MODEL.step_ms(Engine.PMEM_OE, gpus, NO_MISSES) == pytest.approx(dram)


@pytest.mark.parametrize("gpus", [1, 4, 16])
def test_a_cache_of_almost_nothing_costs_no_more_than_rows_in_a_hash_table(gpus: int) -> None:
    pmem_hash = MODEL.step_ms(Engine.PMEM_HASH, gpus)
    assert MODEL.step_ms(Engine.PMEM_OE, gpus, ALL_MISSES) <= pmem_hash


@given(
    gpus=st.integers(1, 64),
    lower=st.tuples(*[st.floats(0, 1)] * 4),
    higher=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_fewer_moves_and_misses_are_never_slower(
    gpus: int, lower: tuple[float, ...], higher: tuple[float, ...]
) -> None:
    fewer = CacheAccesses(*map(min, lower, higher))
    more = CacheAccesses(*map(max, lower, higher))
    for engine in (Engine.ORI_CACHE, Engine.PMEM_OE):
        assert MODEL.step_ms(engine, gpus, fewer) <= MODEL.step_ms(engine, gpus, more)


def test_work_of_the_pipelined_cache_costs_only_what_exceeds_the_gpus_time() -> None:
    moved = dataclasses.replace(NO_MISSES, promotions=1.0, demotions=1.0)
    longer_idle = _with_workload(idle_ms=SETUP.workload.idle_ms + 3)
    assert MODEL.step_ms(Engine.PMEM_OE, 16, moved) == pytest.approx(
        longer_idle.step_ms(Engine.PMEM_OE, 16, moved) + 3
    )
    always_idle = _with_workload(idle_ms=1e6)
    assert always_idle.step_ms(Engine.PMEM_OE, 16, moved) == pytest.approx(
        MODEL.step_ms(Engine.DRAM_PS, 16)
    )


def test_misses_and_late_updates_cost_even_if_the_gpus_hide_all_other_work() -> None:
    always_idle = _with_workload(idle_ms=1e6)
    hits = always_idle.step_ms(Engine.PMEM_OE, 16, NO_MISSES)
    for on_path in ("misses", "late_updates"):
        accesses = dataclasses.replace(NO_MISSES, **{on_path: 0.1})
        assert always_idle.step_ms(Engine.PMEM_OE, 16, accesses) > hits


def test_a_column_s_misses_are_limited_by_one_thread_s_latency_or_the_bandwidth() -> None:
    moved = dataclasses.replace(NO_MISSES, promotions=1.0, demotions=1.0)
    rows = SETUP.workload.gpu_accesses * 16

    def work_ns(largest_column: float) -> float:
        model = _with_workload(idle_ms=1e-9, largest_column=largest_column)
        work_ms = model.step_ms(Engine.PMEM_OE, 16, moved) - model.step_ms(Engine.DRAM_PS, 16)
        return work_ms / rows * 1e6

    moves = DRAM.lookup_ns / SETUP.servers.threads
    # In a single column, each miss waits for the one before: three dependent DRAM reads, one PMem.
    assert work_ns(1.0) == pytest.approx(moves + 3 * DRAM.lookup_ns + PMEM.lone_load_ns)
    assert work_ns(0.5) == pytest.approx(moves + (work_ns(1.0) - moves) / 2)
    # With many columns, the memory's bandwidth is the limit.
    assert work_ns(0.001) == pytest.approx(moves + PMEM.load_ns + PMEM.store_ns)


def _with_workload(**changed: float) -> EpochModel:
    workload = dataclasses.replace(SETUP.workload, **changed)  # type: ignore[arg-type]
    return dataclasses.replace(MODEL, setup=dataclasses.replace(SETUP, workload=workload))


def test_an_engine_with_a_cache_requires_its_access_counts() -> None:
    with pytest.raises(ValueError, match="Ori-Cache"):
        MODEL.step_ms(Engine.ORI_CACHE, 4)


def test_an_incremental_checkpoint_copies_each_touched_row_once_on_its_node() -> None:
    steps = 20 * 60e3 / MODEL.step_ms(Engine.DRAM_PS, 4)
    a_node = steps * SETUP.workload.step_accesses / 2
    dense_s = 5e9 / 1.5e9
    expected = 1 + (dense_s + a_node * (100 + 100 + 90) / 1e9) / 1200
    assert MODEL.checkpoint_slowdown(Engine.DRAM_PS, 4, 20, EACH_ROW_ONCE) == pytest.approx(
        expected
    )


def test_the_pipelined_caches_own_checkpoint_costs_the_dense_weights_alone() -> None:
    for minutes in (10, 40):
        asked = (Engine.PMEM_OE, 16, minutes, EACH_ROW_ONCE, ACCESSES)
        slowdown = MODEL.checkpoint_slowdown(*asked)
        assert (slowdown - 1) * minutes * 60 == pytest.approx(5 / 1.5)
        incremental = MODEL.checkpoint_slowdown(*asked, incremental=True)
        assert incremental > slowdown


def test_recovery_scans_every_row_on_each_node() -> None:
    assert MODEL.recovery_s(Engine.PMEM_OE) == pytest.approx(2.1 * (90 + 100))
    assert MODEL.recovery_s(Engine.DRAM_PS) == pytest.approx(2.1 * (90 + 100 + 90) / 2)
    with pytest.raises(ValueError, match="Ori-Cache"):
        MODEL.recovery_s(Engine.ORI_CACHE)


def test_predictions_depend_only_on_the_published_figures_that_were_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real counts take a minute, and don't depend on published figures.
    monkeypatch.setattr(prediction, "count_cache_accesses", lambda *_: ACCESSES)
    monkeypatch.setattr(prediction, "count_touched_rows", lambda *_: EACH_ROW_ONCE)
    document = yaml.safe_load(PUBLISHED_FILE.read_text())
    hours = document["epoch_hours"]["dram_ps"]  # scales the costs, as the page says
    for name, figures in document.items():
        if name not in ("source", "fitted"):
            document[name] = _scaled(1.7, figures)
    document["epoch_hours"]["dram_ps"] = hours
    changed = tmp_path / "published.yaml"
    changed.write_text(yaml.safe_dump(document, sort_keys=False))

    true = openembedding_sections(lambda _: None)
    other = openembedding_sections(lambda _: None, load_published(changed))
    pairs = [
        (before, after)
        for section, again in zip(true, other, strict=True)
        for before, after in zip(section.rows, again.rows, strict=True)
    ]
    assert len(pairs) > 30
    for before, after in pairs:
        assert after.published == pytest.approx(1.7 * before.published), before.name
        assert after.predicted == before.predicted, before.name


def _scaled(factor: float, figures: object) -> object:
    if isinstance(figures, dict):
        return {key: _scaled(factor, value) for key, value in figures.items()}
    assert isinstance(figures, (int, float))
    return figures * factor


def test_predictions_change_with_each_fitted_time() -> None:
    asked = Question(16)
    true = Predictor(SETUP, PAPER).plain(Engine.PMEM_HASH, asked)
    for name in ("dram_16", "hash_4"):
        changed = dataclasses.replace(PAPER, **{name: 1.1 * getattr(PAPER, name)})
        assert Predictor(SETUP, changed).plain(Engine.PMEM_HASH, asked) != pytest.approx(true)


@pytest.mark.long
def test_times_without_checkpoints_are_within_15_percent_of_the_papers() -> None:
    published = load_published()
    predictor = Predictor(SETUP, published.fitted)
    for name, times in published.plain.items():
        for gpus, time in times.items():
            predicted = predictor.plain(Engine(name), Question(int(gpus)))
            assert predicted == pytest.approx(time, rel=0.15), (name, gpus)


@pytest.mark.long
def test_miss_rates_of_other_skews_are_within_15_percent_of_the_papers() -> None:
    published = load_published()
    predictor = Predictor(SETUP, published.fitted)
    for skew, percent in published.miss_rate_percent.items():
        misses = predictor.cache_accesses(Question(16, skew=skew)).misses
        assert misses * 100 == pytest.approx(percent, rel=0.15), skew


@pytest.mark.parametrize(
    ("section", "field", "value", "problem"),
    [
        ("workload", "rows", -1, "workload.rows: must be a whole number above 0"),
        ("workload", "step_ms", None, "workload.step_ms: is missing"),
        ("servers", "threads", 1.5, "servers.threads: must be a whole number above 0"),
        ("servers", "cache_bg", 2, "servers.cache_bg: is no field here"),
    ],
)
def test_a_wrong_setup_is_refused_by_file_and_field(
    section: str, field: str, value: object, problem: str, tmp_path: Path
) -> None:
    document = yaml.safe_load(SETUP_FILE.read_text())
    document[section][field] = value
    file = tmp_path / "setup.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(LabError, match=problem) as raised:
        load_setup(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("section", "value", "problem"),
    [
        ("fitted", {"dram_ps": {4: 1.0}, "pmem_hash": {4: 2.0}}, r"fitted.dram_ps: must have"),
        (
            "plain",
            {"ori_cache": {4: -1}},
            r"plain.ori_cache: must be a mapping of numbers",
        ),
        ("recovery_s", None, r"recovery_s: is missing"),
        ("epoch_dollars", {"pmem_oe": "20"}, r"epoch_dollars.pmem_oe: must be a number above 0"),
    ],
)
def test_wrong_published_figures_are_refused_by_file_and_field(
    section: str, value: object, problem: str, tmp_path: Path
) -> None:
    document = yaml.safe_load(PUBLISHED_FILE.read_text())
    document[section] = value
    file = tmp_path / "published.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(LabError, match=problem) as raised:
        load_published(file)
    assert str(file) in str(raised.value)
