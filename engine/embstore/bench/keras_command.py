"""`keras`: training steps of a Keras model, over embstore's table and over Keras's own."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, keras_suite
from embstore.bench.keras_suite import AIM, OWN, KerasOptions, KerasResults
from embstore.bench.report import Report
from embstore.bench.tables import number, reached, table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = KerasOptions()
    arguments.add_counts(
        parser,
        default,
        rows="Keras's table has",
        dim=None,
        batch_size="samples",
        features="ids a sample",
        steps="a round",
        rounds=None,
    )
    arguments.add_skew(parser, default.skew)
    arguments.add_seed(parser, default.seed)


options_of = partial(arguments.options, KerasOptions)


def advance_count(options: KerasOptions) -> int:
    return options.rounds + 1  # the first isn't counted


def run(options: KerasOptions, watcher: Watcher) -> Report:
    results = keras_suite.run(options, watcher)
    return Report([_table(options, results)], keras_suite.to_json(results))


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
