"""Training steps of a Keras model over embstore's table, and over Keras's own embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import embstore as es
from embstore.bench.measure import Figure, compare
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

YARDSTICK = "keras.layers.Embedding"
OWN = "embstore.keras.Embedding"
AIM = 10.0  # times the yardstick


@dataclass(frozen=True)
class KerasOptions:
    rows: int = 2_000_000
    dim: int = 16
    batch_size: int = 4096  # samples
    features: int = 26  # ids a sample
    steps: int = 3  # a round
    rounds: int = 5
    skew: float = 1.05
    seed: int = 0


@dataclass(frozen=True)
class KerasResults:
    backend: str
    figures: dict[str, Figure]  # ids/s


def run(options: KerasOptions, watcher: Watcher) -> KerasResults:
    own_embedding = es.keras.Embedding  # first: it says what is missing, and how to get it
    import keras

    shape = (options.batch_size, options.features)
    ids = BoundedZipf(options.rows, options.skew, options.seed)
    # Ranks are spread over the keys, as hashed features are.
    spread = np.random.default_rng(options.seed).permutation(options.rows)
    batches = [spread[ids.draw(shape[0] * shape[1])].reshape(shape) for _ in range(options.steps)]
    labels = np.ones((options.batch_size, 1), np.float32)

    def steps_over(embedding: Any) -> Callable[[], None]:
        inputs = keras.Input((options.features,), dtype="int64")
        hidden = keras.layers.Flatten()(embedding(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adagrad(0.01), "mse")

        def train() -> None:
            for batch in batches:
                model.train_on_batch(batch, labels)

        return train

    watcher.begin("training steps")
    figures = compare(
        {
            YARDSTICK: [steps_over(keras.layers.Embedding(options.rows, options.dim))],
            OWN: [steps_over(own_embedding(None, options.dim))],
        },
        options.steps * shape[0] * shape[1],
        yardstick=YARDSTICK,
        rounds=options.rounds,
        on_round=watcher.advance,
    )
    return KerasResults(keras.backend.backend(), figures)


def to_json(results: KerasResults) -> dict[str, object]:
    return {
        "backend": results.backend,
        "training_steps": {
            "unit": "ids/s",
            "figures": {name: asdict(figure) for name, figure in results.figures.items()},
            "aim": AIM,
        },
    }
