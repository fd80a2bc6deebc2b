"""The output of `pmemlab model predict`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from pmemlab.model.openembedding.calibration import TRIES, find_cached_row_bytes
from pmemlab.model.openembedding.model import Engine
from pmemlab.model.openembedding.prediction import Predictor, Question
from pmemlab.model.openembedding.published import load_published
from pmemlab.model.openembedding.setup import load_setup
from pmemlab.progress_bar import progress_bar
from pmemlab.results import results_console

__all__ = ["openembedding"]

_messages = Console(stderr=True, highlight=False)


def openembedding(arguments: argparse.Namespace) -> int:
    setup, published = load_setup(), load_published()
    if arguments.find_row_bytes:
        with progress_bar("counting with caches of several sizes", TRIES) as show:
            row_bytes = find_cached_row_bytes(setup, lambda: show(advance=1))
        print(f"{row_bytes:.0f}")
        return 0
    with _messages.status("loading devices") as status:
        predictor = Predictor(
            setup, published.fitted, on_count=lambda what: status.update(f"counting {what}")
        )
        questions = [
            Question(gpus, arguments.cache_gb, arguments.skew, arguments.checkpoint_minutes)
            for gpus in arguments.gpus
        ]
        hours = published.epoch_hours["dram_ps"]
        rows = [_row(predictor, q, engine, hours) for q in questions for engine in Engine]
    if arguments.json:
        print(json.dumps(_document(predictor, questions, rows)))
        return 0
    _print_tables(predictor, questions, rows, arguments.checkpoint_minutes)
    return 0


def _row(predictor: Predictor, question: Question, engine: Engine, hours: float) -> dict[str, Any]:
    with_checkpoints = None
    if engine is not Engine.PMEM_HASH:  # the paper gives it no checkpoints
        with_checkpoints = predictor.with_checkpoints(engine, question)
    return {
        "engine": engine.value,
        "gpus": question.gpus,
        "relative_time": predictor.plain(engine, question),
        "relative_time_with_checkpoints": with_checkpoints,
        "epoch_hours": None if with_checkpoints is None else with_checkpoints * hours,
        "epoch_dollars": None
        if with_checkpoints is None
        else predictor.epoch_dollars(engine, question, hours),
    }


def _document(
    predictor: Predictor, questions: list[Question], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "kind": "modelled",
        "fit": dataclasses.asdict(predictor.model.fit),
        "asked": [dataclasses.asdict(question) for question in questions],
        "cache_accesses": [
            dataclasses.asdict(predictor.cache_accesses(question)) for question in questions
        ],
        "epochs": rows,
        "recovery_s": {
            engine.value: predictor.model.recovery_s(engine)
            for engine in (Engine.DRAM_PS, Engine.PMEM_OE)
        },
    }


def _print_tables(
    predictor: Predictor, questions: list[Question], rows: list[dict[str, Any]], minutes: float
) -> None:
    console = results_console()
    epochs = Table(title="An epoch, modelled; times are of DRAM-PS on 4 GPUs")
    epochs.add_column("engine")
    for title in ("GPUs", "no checkpoints", f"every {minutes:g} min", "hours", "servers, $"):
        epochs.add_column(title, justify="right")
    for row in rows:
        epochs.add_row(
            Engine(row["engine"]).title,
            str(row["gpus"]),
            f"{row['relative_time']:.2f}",
            _cell_text(row["relative_time_with_checkpoints"], ".2f"),
            _cell_text(row["epoch_hours"], ".2f"),
            _cell_text(row["epoch_dollars"], ".1f"),
        )
    console.print(epochs)
    counted = Table(title="The cache, counted by the engine; of rows pulled")
    for title in ("GPUs", "misses", "promotions", "demotions", "late updates"):
        counted.add_column(title, justify="right")
    for question in questions:
        accesses = predictor.cache_accesses(question)
        counted.add_row(
            str(question.gpus),
            *(f"{share:.2%}" for share in dataclasses.astuple(accesses)),
        )
    console.print(counted)
    console.print(
        "Assumptions: lab/pmemlab/model/openembedding/README.md; "
        "how well: `pmemlab model fidelity`."
    )


def _cell_text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
