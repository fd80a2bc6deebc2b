"""`keras`: training steps of a Keras model, over embstore's table and over Keras's own."""

from __future__ import annotations

import argparse

from rich.table import Table

from embstore.bench import arguments, keras_suite
from embstore.bench.keras_suite import AIM, OWN, KerasOptions
from embstore.bench.report import Report
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = KerasOptions()
    positive = arguments.positive
    parser.add_argument("--rows", type=positive, default=default.rows, help="Keras's table has")
    parser.add_argument("--dim", type=positive, default=default.dim)
    parser.add_argument("--batch-size", type=positive, default=default.batch_size, help="samples")
    parser.add_argument("--features", type=positive, default=default.features, help="ids a sample")
    parser.add_argument("--steps", type=positive, default=default.steps, help="a round")
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument("--skew", type=arguments.skew, default=default.skew, help="Zipf's exponent")
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)


def options_of(parsed: argparse.Namespace) -> KerasOptions:
    return KerasOptions(
        rows=parsed.rows,
        dim=parsed.dim,
        batch_size=parsed.batch_size,
        features=parsed.features,
        steps=parsed.steps,
        rounds=parsed.rounds,
        skew=parsed.skew,
        seed=parsed.seed,
    )


def advance_count(options: KerasOptions) -> int:
    return options.rounds + 1  # the first isn't counted


def run(options: KerasOptions, watcher: Watcher) -> Report:
    results = keras_suite.run(options, watcher)
    table = Table(
        title=f"Training steps of Adagrad, Keras on {results.backend}: {options.rows:,} rows of "
        f"dim {options.dim}, {options.batch_size * options.features:,} ids a step"
    )
    table.add_column("embedding", no_wrap=True)
    for column in ("M ids/s", "from", "to", "ratio", "aim"):
        table.add_column(column, justify="right")
    table.add_column("")
    for name, figure in results.figures.items():
        rates = (figure.median, figure.minimum, figure.maximum)
        aimed = name == OWN and figure.ratio is not None
        table.add_row(
            name,
            *(f"{rate / 1e6:.2f}" for rate in rates),
            "-" if figure.ratio is None else f"{figure.ratio:.1f}",
            f"≥ {AIM:g}" if aimed else "-",
            ("reached" if (figure.ratio or 0) >= AIM else "missed") if aimed else "",
        )
    return Report([table], keras_suite.to_json(options, results))
