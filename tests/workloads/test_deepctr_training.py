"""Training learns, is reproducible to the bit, makes checkpoints and resumes from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepctr_runs import SMALL, generated, keras, short_run
from numpy.typing import NDArray

import embstore as es
from benchmarks.criteo_deepctr import training
from benchmarks.criteo_deepctr.feature_keys import feature_keys
from benchmarks.criteo_deepctr.models import make_model
from benchmarks.criteo_deepctr.options import HIDDEN_UNITS
from benchmarks.criteo_deepctr.training import State
from pmemlab.workloads.auc import roc_auc
from pmemlab.workloads.batches import DataError


@pytest.mark.parametrize("name", HIDDEN_UNITS)
def test_a_short_training_ranks_rows_that_it_has_not_seen(name: str) -> None:
    result = short_run(replace(SMALL, name=name), generated(7000))
    assert (result.rows, result.held_out_rows) == (7000, 2000)
    assert result.auc is not None
    assert result.auc > 0.6


def test_without_trained_rows_the_auc_stays_low(monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(*arguments: Any) -> Any:
        model = make_model(*arguments)
        for name in ("rows", "linear_rows"):
            model.get_layer(name).trainable = False
        return model

    monkeypatch.setattr(training, "make_model", untrained)
    auc = short_run(SMALL, generated(7000)).auc
    assert auc is not None
    assert auc < 0.6


def test_the_same_seed_gives_the_same_bits() -> None:
    rows = generated(1000)
    first, again = short_run(SMALL, rows), short_run(SMALL, rows)
    assert first.losses_sha256 == again.losses_sha256
    assert first.auc == again.auc
    assert short_run(SMALL, rows, seed=6).losses_sha256 != first.losses_sha256


@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path: Path, optimizer: str) -> None:
    def run(folder: str, **options: Any) -> dict[str, NDArray[Any]]:
        given = {"checkpoint": tmp_path / folder, "optimizer": optimizer, **options}
        short_run(SMALL, generated(1000), **given)
        (path,) = (tmp_path / folder).glob("dense-*.npz")
        with np.load(path) as file:
            return dict(file)

    uninterrupted = run("whole", epochs=2)
    half = run("half", epochs=1)
    resumed = run("half", epochs=2, load=tmp_path / "half")
    assert half["epochs"] == 1
    assert resumed.keys() == uninterrupted.keys()
    # A single different row would show in these arrays after the last batches.
    for name, array in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    assert any(
        (half[name] != uninterrupted[name]).any()
        for name in uninterrupted
        if name.startswith("weight")
    )


def test_a_checkpoint_that_is_cut_short_leaves_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    def cut(*_arguments: object) -> None:
        raise Cut

    previous = tmp_path / "kept"
    short_run(SMALL, generated(300), checkpoint=previous)
    with monkeypatch.context() as patched:
        patched.setattr(es, "save", cut)
        with pytest.raises(Cut):
            short_run(SMALL, generated(300), epochs=2, load=previous, checkpoint=previous)
    assert len(list(previous.glob("dense-*.npz"))) == 2
    resumed = short_run(SMALL, generated(300), epochs=2, load=previous, checkpoint=previous)
    assert resumed.rows == 300
    assert len(list(previous.glob("dense-*.npz"))) == 1


def test_an_unusable_checkpoint_is_named(tmp_path: Path) -> None:
    short_run(SMALL, generated(200), checkpoint=tmp_path / "kept")
    with pytest.raises(DataError, match=r"nothing has no checkpoint.*--checkpoint"):
        short_run(load=tmp_path / "nothing")
    with pytest.raises(DataError, match=r"kept is of DeepFM of dim 4.*this is DeepFM of dim 5"):
        short_run(replace(SMALL, embedding_dim=5), load=tmp_path / "kept")
    with pytest.raises(DataError, match="has had 1 epochs, and --epochs asks for 1 in all"):
        short_run(load=tmp_path / "kept")
    (dense,) = (tmp_path / "kept").glob("dense-*.npz")
    content = dense.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (content[:100], flipped):
        dense.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{dense.name}: can't be read back"):
            short_run(epochs=2, load=tmp_path / "kept")
    np.savez(dense, other=np.zeros(3))
    with pytest.raises(DataError, match=r"kept is of None, and this is DeepFM"):
        short_run(epochs=2, load=tmp_path / "kept")


def test_a_saved_model_gives_the_chances_of_the_trained_one(tmp_path: Path) -> None:
    for name in HIDDEN_UNITS:
        path = tmp_path / f"{name}.keras"
        epochs = generated(600)
        result = short_run(replace(SMALL, name=name), epochs, save=path)
        held_out = epochs.held_out()
        model = keras.models.load_model(path)
        inputs = [feature_keys(held_out.keys), held_out.dense]
        scores = np.asarray(model.predict_on_batch(inputs))[:, 0]
        assert roc_auc(held_out.labels, scores) == pytest.approx(result.auc, abs=1e-6)


def test_every_step_is_reported() -> None:
    states: list[State] = []
    short_run(SMALL, generated(1000), epochs=2, judge_every=5, on_progress=states.append)
    assert [(state.epoch, state.rows) for state in states[6:10]] == [
        *((0, 896), (0, 1000)),
        *((1, 128), (1, 256)),
    ]
    assert [state.auc is None for state in states] == [True] * 4 + [False] * 12
    assert states[4].auc != states[9].auc
    assert all(state.samples_per_s > 0 for state in states)


def test_without_a_row_there_is_nothing_to_train_on() -> None:
    with pytest.raises(DataError, match="no row to train on"):
        short_run(SMALL, generated(0))
