"""The predicted time of a recorded run on other devices."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from planned_devices import FixedTimeDevice

import embstore as es
from pmemlab.errors import LabError
from pmemlab.model.prediction import RanIn, caches_before, predict_run

DIM = 16


def table(folder: Path, devices: Sequence[FixedTimeDevice | None] = ()) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "table",
        DIM,
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(
            storage_option=es.StorageOption(
                es.StorageType.DRAM_SSDHASH, str(folder), [200 * 128], devices=devices
            )
        ),
    )


def train(variable: es.EmbeddingVariable, steps: int = 10) -> None:
    random = np.random.default_rng(1)
    for _ in range(steps):
        ids = random.integers(0, 2000, 500)
        variable.lookup(ids, train=True)
        variable.apply_gradients(ids, np.ones((500, DIM), np.float32))


def recorded(
    variable: es.EmbeddingVariable, placements: Sequence[Sequence[FixedTimeDevice | None]]
) -> tuple[np.ndarray, list[es.Caches], RanIn]:
    """Trains a table while its accesses are recorded. Returns phases, caches, and the run."""
    caches = caches_before(placements)
    with es.record_accesses(variable, caches=caches) as recording:
        began = time.perf_counter()
        train(variable)
        seconds = time.perf_counter() - began
    return recording.phases, caches, RanIn(seconds, threading.get_native_id())


def test_a_tier_takes_the_time_of_its_accesses_on_the_device(tmp_path: Path) -> None:
    slow = FixedTimeDevice("slow", 1e6)
    with table(tmp_path) as variable:
        phases, caches, ran = recorded(variable, [[slow, None]])
        own = phases[(phases["tier"] == 0) & (phases["thread"] == ran.thread)]
        assert own["accesses"].sum() > 5000
        predicted = predict_run(phases, caches, [slow, None], ran)
    assert predicted.devices == ("slow", None)
    assert predicted.tier_seconds[0] == pytest.approx(own["accesses"].sum() * 1e-3)
    elsewhere = ran.seconds - own["elapsed_ns"].sum() / 1e9
    assert predicted.tier_seconds[1] + predicted.rest_seconds == pytest.approx(elsewhere)


def test_without_known_media_no_prediction_is_faster_than_the_run(tmp_path: Path) -> None:
    fast = FixedTimeDevice("fast", 1e-3)
    with table(tmp_path) as variable:
        phases, caches, ran = recorded(variable, [[fast, fast]])
        predicted = predict_run(phases, caches, [fast, fast], ran)
        as_here = predict_run(phases, caches, [None, None], ran)
    assert predicted.seconds == as_here.seconds == pytest.approx(ran.seconds)


def test_the_time_of_this_computer_s_memory_is_replaced_by_the_device_s(tmp_path: Path) -> None:
    fast, here = FixedTimeDevice("fast", 10.0), FixedTimeDevice("here", 50.0)
    with table(tmp_path) as variable:
        phases, caches, ran = recorded(variable, [[fast, None]])
        trains = phases["thread"] == ran.thread
        own = phases[trains & (phases["tier"] == 0)]
        was_there_ns = own["accesses"] * 50
        assert (was_there_ns < own["elapsed_ns"]).any()
        predicted = predict_run(phases, caches, [fast, None], ran, [here])
        as_it_was = predict_run(phases, caches, [here, None], ran, [here])
        with_none_known = predict_run(phases, caches, [fast, None], ran, [None, None])
    work_ns = np.maximum(0.0, own["elapsed_ns"].astype(float) - was_there_ns)
    takes_ns = work_ns + own["accesses"] * 10
    assert predicted.tier_seconds[0] == pytest.approx(takes_ns.sum() / 1e9)
    assert predicted.tier_seconds[1:] == with_none_known.tier_seconds[1:]
    assert predicted.seconds < with_none_known.seconds <= as_it_was.seconds


def test_training_waits_for_the_thread_that_moves_rows_if_that_is_busier(tmp_path: Path) -> None:
    slow = FixedTimeDevice("slow", 1e3)
    with table(tmp_path) as variable:
        phases, caches, ran = recorded(variable, [[slow, slow]])
    phases["thread"] = 2
    phases["thread"][: len(phases) // 2] = 1
    phases["thread"][-1] = 3  # the training thread, with a single phase
    busy = [phases["thread"] == thread for thread in (1, 2)]
    takes = np.maximum(phases["elapsed_ns"], phases["accesses"] * 1e3) / 1e9
    predicted = predict_run(phases, caches, [slow, slow], RanIn(ran.seconds, 3))
    assert sum(predicted.tier_seconds) == pytest.approx(takes[-1])
    own = ran.seconds - phases["elapsed_ns"][-1] / 1e9 + takes[-1]
    assert predicted.seconds == pytest.approx(max(own, takes[busy[0]].sum(), takes[busy[1]].sum()))
    assert predicted.behind_seconds == pytest.approx(predicted.seconds - own)


def test_a_prediction_beyond_the_recording_is_refused(tmp_path: Path) -> None:
    slow = FixedTimeDevice("slow", 1e3)
    with table(tmp_path) as variable:
        phases, caches, ran = recorded(variable, [[slow]])
    with pytest.raises(LabError, match="1 for 2 tiers"):
        predict_run(phases, caches, [slow], ran)
    other = FixedTimeDevice("other", 1e3, cpu_cache_bytes=1 << 24)
    with pytest.raises(LabError, match=r"other: its caches were not .* to caches_before"):
        predict_run(phases, caches, [other, None], ran)
    with pytest.raises(LabError, match="less than its phases"):
        predict_run(phases, caches, [slow, None], RanIn(1e-9, ran.thread))
    for seconds in (float("nan"), float("inf")):
        with pytest.raises(LabError, match=f"ran.seconds: must be finite, not {seconds}"):
            predict_run(phases, caches, [slow, None], RanIn(seconds, ran.thread))
    with pytest.raises(LabError, match=rf"ran.thread: thread 3 .* nothing; .* {ran.thread}"):
        predict_run(phases, caches, [slow, None], RanIn(ran.seconds, 3))
    assert predict_run(phases[:0], caches, [slow, None], RanIn(1.0, 3)).seconds == 1.0
