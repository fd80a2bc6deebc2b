"""Prints what a scenario needs to know about a run; for the user's own training scripts.

    from pmemlab.workloads.own_program import print_run

    print_run(variables, losses=losses, samples=samples, seconds=seconds)

`scenarios/README.md` describes the output, for programs in other languages or with another engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import embstore as es
from pmemlab.errors import LabError
from pmemlab.workloads.evidence import TableEvidence, ask_witness, examine_tables, parse_findings
from pmemlab.workloads.witness import Claim, Finding
from pmemlab.workloads.witness_protocol import ANSWER, FOLDER_VARIABLE, LOOK_REQUEST, QUESTION

__all__ = ["print_run"]

_POLL_S: Final = 0.05
_LIMIT_S: Final = 300.0
_PR_SET_PTRACER: Final = 0x59616D61


def print_run(
    variables: Sequence[es.EmbeddingVariable],
    *,
    losses: Sequence[float],
    samples: int,
    seconds: float,
    lookups_per_s: float | None = None,
    auc: float | None = None,
) -> None:
    """Print a run's results, and let another process look for the rows where they should lie.

    variables: all that were trained; still open. This function drains them.
    losses: one per step. samples, seconds: number of trained rows, and how long that took.
    lookups_per_s: embedding rows read per second. auc: on held-out rows. None: not known.

    In a scenario the lab looks for the rows; elsewhere a child of this process does. Raises
    `LabError` if rows can't be looked for.

    REQUIRES: it is called once, and nothing is written to standard output afterwards.
    """
    for variable in variables:
        variable.drain()
    folder = os.environ.get(FOLDER_VARIABLE)
    ask = (lambda claims: _ask_lab(claims, Path(folder))) if folder else ask_witness
    state, tables = examine_tables(variables, (each.export() for each in variables), ask)
    document = {
        "samples": samples,
        "seconds": seconds,
        "losses": [float(loss).hex() for loss in losses],
        "lookups_per_s": lookups_per_s,
        "auc": auc,
        "state_sha256": state,
        "tables": [_table(table) for table in tables],
    }
    sys.stdout.flush()
    print(json.dumps(document), flush=True)


def _table(table: TableEvidence) -> dict[str, Any]:
    stats = table.stats
    counts = {name: stats[name] for name in ("hits", "misses", "promotions", "demotions")}
    levels = [
        {name: tier[name] for name in ("name", "rows", "bytes", "capacity_rows")}
        for tier in stats["tiers"]
    ]
    return {
        "name": table.name,
        "exported_rows": table.exported_rows,
        "stats": {**counts, "tiers": levels},
        "tiers": [vars(tier) for tier in table.tiers],
    }


def _ask_lab(claims: Sequence[Claim], folder: Path) -> list[Finding]:
    # The witness is not a child of this process, so allow any process to read this one's memory.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    question = {"pid": os.getpid(), "claims": [vars(claim) for claim in claims]}
    (folder / QUESTION).write_text(json.dumps(question), encoding="utf-8")
    print(LOOK_REQUEST, file=sys.stderr, flush=True)
    answer = folder / ANSWER
    deadline = time.monotonic() + _LIMIT_S
    while not answer.exists():
        if time.monotonic() > deadline:
            raise LabError(f"{answer}: nobody looked for rows within {_LIMIT_S:g} s")
        time.sleep(_POLL_S)
    return parse_findings(answer.read_text(encoding="utf-8"))
