"""The part of a run that counts in a prediction."""

from __future__ import annotations

import time

import numpy as np
import pytest

import embstore as es
from embstore.devices.recording import AccessRecording
from pmemlab.model.devices import load_device
from pmemlab.workloads.predicting import Predicting


def test_everything_after_the_reset_counts_even_after_a_slow_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter = AccessRecording.__enter__

    def enter_late(recording: AccessRecording) -> AccessRecording:
        time.sleep(0.1)  # as on a busy computer
        return enter(recording)

    monkeypatch.setattr(AccessRecording, "__enter__", enter_late)
    ids = np.arange(1000)
    with es.get_embedding_variable("table", 16, optimizer=es.optimizers.SGD(0.1)) as table:
        table.apply_gradients(ids, np.ones((ids.size, 16), np.float32))
        with Predicting([table], [(load_device("optane-100-x6"),)]) as predicting:
            table.lookup(ids)
            predicting.reset()
            table.lookup(ids)
        _, elsewhere = predicting.predictions(seconds=1.0, steps=1, samples=1)
    assert elsewhere["step_ms"]["tier0"] > 0
