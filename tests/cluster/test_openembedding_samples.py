"""The guide's replacement for OpenEmbedding's samples for Horovod and MirroredStrategy runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")

GUIDE = Path(__file__).parents[2] / "engine" / "docs" / "keras-and-openembedding.md"

BEGINS = """
import numpy as np


def make_keras_model():
    inputs = keras.Input((26,), dtype="int64")
    rows = keras.layers.Embedding(1000, 4, embeddings_initializer="zeros", name="rows")(inputs)
    hidden = keras.layers.Flatten()(rows)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def part_of_the_data(rank):
    ids = np.random.default_rng(rank).integers(1000, size=(64, 26))
    labels = (ids[:, :1] % 2).astype(np.float32)

    class Part(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return ids[16 * i : 16 * (i + 1)], labels[16 * i : 16 * (i + 1)]

    return Part()
"""

ENDS = """
    (table,) = es.keras.variables(model)
    with open(f"{FOLDER}/{worker.rank}", "w") as file:
        file.write(str(table.total_count()[0]))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_sample_for_several_workers_runs(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    pytest.importorskip("torch")
    pytest.importorskip("keras")
    (block,) = (
        text
        for text in re.findall(r"^```python no-run\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
        if "es.cluster.run" in text
    )
    program = block.replace("file:///shared", tmp_path.as_uri()).replace(
        "\n\ndef train", f"{BEGINS}\n\ndef train", 1
    )
    ends = ENDS.replace("{FOLDER}", str(tmp_path))
    program = program.replace("\n\nif __name__", f"{ends}\n\nif __name__", 1)
    path = tmp_path / "sample.py"
    path.write_text(program)
    ran = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "KERAS_BACKEND": "torch", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counts = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert counts[0] == counts[1], "both train the same rows"
    assert counts[0] > 700
