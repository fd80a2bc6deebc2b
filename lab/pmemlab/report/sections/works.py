"""The section on runs without a rate of their own: that they work, and their modelled rates."""

from __future__ import annotations

from collections.abc import Sequence

from pmemlab.quantities import count_text, known_text
from pmemlab.report.documents import Results
from pmemlab.report.page import Section, Table
from pmemlab.scenarios.rows import ResultRow, modelled_rates_of, rate_cells

__all__ = ["works"]

_TITLE = "What works"


def works(results: Results) -> Section:
    """Returns a table of the runs whose own rates say nothing, with modelled rates instead."""
    without_rates = [row for row in results.rows if not row.has_rates]
    rows = [row for row in without_rates if not row.not_judged]
    unjudged = _unjudged_blocks([row for row in without_rates if row.not_judged])
    if not rows and unjudged:
        return Section("works", _TITLE, unjudged)
    if not rows:
        missing_note = (
            "No run here lacks a rate of its own; `make scenarios` makes such runs, on emulated "
            "media."
        )
        return Section("works", _TITLE, missing_note=missing_note)
    text = (
        "Each of these trained to the rows and losses of DRAM on the same machine, to the last "
        "bit; on a machine that was proved, its rows lay where the storage type says. Their own "
        "rates say nothing: a medium was emulated or replaced, the machine was not proved, "
        "the timed steps saved, or a disk was read through the page cache. Samples a second are "
        "modelled: the workload ran on this computer with larger tables, and what it did with rows "
        "was timed on the devices that the media stand for. Of DRAM: beside the same workload with "
        "all rows in DRAM. USD an hour are of the cheapest machine in the lab's prices that holds "
        "these devices."
    )
    modelled = modelled_rates_of(rows, results.rows)
    table = Table(
        f"{count_text(len(rows), 'run')} whose own rates say nothing",
        (
            *("scenario", "storage type", "machine", "devices", "samples/s", "of DRAM", "USD/h"),
            *("hits", "AUC", "commit"),
        ),
        [
            (
                row.scenario,
                row.storage_type,
                row.machine_label,
                *(rate_cells(modelled[number]) if number in modelled else ("–",) * 4),
                known_text(row.hit_rate, ".1%"),
                known_text(row.auc, ".3f"),
                row.commit,
            )
            for number, row in enumerate(rows)
        ],
        numeric=(4, 5, 6, 7, 8),
    )
    return Section("works", _TITLE, [text, table, *unjudged])


def _unjudged_blocks(rows: Sequence[ResultRow]) -> list[str | Table]:
    """Returns blocks about programs that the lab was not asked to judge."""
    if not rows:
        return []
    text = "These programs ended well and printed their rates. Whether they work was not judged."
    table = Table(
        f"{count_text(len(rows), 'run')} of programs that were not judged",
        ("scenario", "storage type", "machine", "not judged", "commit"),
        [
            (
                row.scenario,
                row.storage_type,
                row.machine_label,
                " and ".join(row.not_judged),
                row.commit,
            )
            for row in rows
        ],
    )
    return [text, table]
