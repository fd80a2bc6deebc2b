"""`python -m embstore.bench keras` compares training steps with those of Keras's embedding."""

from __future__ import annotations

import json
from pathlib import Path

from keras_models import keras

from embstore.bench.__main__ import main


def test_both_embeddings_are_timed_on_the_same_steps(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    small = [
        "--rows",
        "1000",
        "--batch-size",
        "32",
        "--features",
        "3",
        "--steps",
        "1",
        "--rounds",
        "2",
    ]
    main(["keras", *small, "--json", str(path)])
    document = json.loads(path.read_text())
    assert document["backend"] == keras.backend.backend()
    figures = document["training_steps"]["figures"]
    assert set(figures) == {"keras.layers.Embedding", "embstore.keras.Embedding"}
    assert figures["keras.layers.Embedding"]["ratio"] == 1.0
    assert all(figure["median"] > 0 for figure in figures.values())
