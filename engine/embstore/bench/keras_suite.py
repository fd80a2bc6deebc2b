"""`keras`: training steps of a Keras model, over embstore's table and over Keras's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from rich.table import Table

import embstore as es
from embstore.bench.arguments import SEED, SKEW, count
from embstore.bench.measure import Figure, compare
from embstore.bench.report import Report
from embstore.bench.tables import number, reached, table
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

YARDSTICK = "keras.layers.Embedding"
OWN = "embstore.keras.Embedding"
AIM = 10.0  # times the yardstick


@dataclass(frozen=True)
class KerasOptions:
    rows: Annotated[int, count("number of rows in Keras's table (default: %(default)s)")] = (
        2_000_000
    )
    dim: Annotated[int, count("dim of tables (default: %(default)s)")] = 16
    batch_size: Annotated[int, count("number of samples in a batch (default: %(default)s)")] = 4096
    features: Annotated[int, count("number of ids in a sample (default: %(default)s)")] = 26
    steps: Annotated[int, count("number of steps in a round (default: %(default)s)")] = 3
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 5
    skew: Annotated[float, SKEW] = 1.05
    seed: Annotated[int, SEED] = 0


@dataclass(frozen=True)
class KerasResults:
    backend: str
    figures: dict[str, Figure]  # ids/s


def measure(options: KerasOptions, watcher: Watcher) -> KerasResults:
    own_embedding = es.keras.Embedding  # first: its error says what is missing, and how to get it
    import keras

    shape = (options.batch_size, options.features)
    ids = BoundedZipf(options.rows, options.skew, options.seed)
    # Spreads ranks over the keys, as hashing does.
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


OPTIONS = KerasOptions


def advance_count(options: KerasOptions) -> int:
    return options.rounds + 1  # the first round isn't counted


def run(options: KerasOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    return Report([_table(options, results)], to_json(results))


def _table(options: KerasOptions, results: KerasResults) -> Table:
    rows = []
    for name, figure in results.figures.items():
        aimed = name == OWN and figure.ratio is not None
        rows.append(
            (
                name,
                *(number(rate / 1e6) for rate in (figure.median, figure.minimum, figure.maximum)),
                number(figure.ratio, 1),
                f"≥ {AIM:g}" if aimed else "-",
                reached((figure.ratio or 0) >= AIM) if aimed else "",
            )
        )
    return table(
        f"Training steps of Adagrad, Keras on {results.backend}: {options.rows:,} rows of "
        f"dim {options.dim}, {options.batch_size * options.features:,} ids a step",
        ("embedding",),
        ("M ids/s", "from", "to", "ratio", "aim"),
        rows,
        remark=True,
        one_line="names",
    )
