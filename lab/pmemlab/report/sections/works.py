"""What ran on emulated media: that it works, never how fast."""

from __future__ import annotations

from pmemlab.report.documents import Results
from pmemlab.report.page import Section, Table
from pmemlab.report.sections.quantities import count_text

__all__ = ["works"]

_TITLE = "What works on emulated media"


def works(results: Results) -> Section:
    """A table of the runs whose rates say nothing, without them."""
    rows = [row for row in results.rows if not row.has_rates]
    if not rows:
        lacking = "No run here was on emulated media; `make scenarios` makes some."
        return Section("works", _TITLE, lacking=lacking)
    text = (
        "Each of these trained to the rows and losses of DRAM on the same machine, to the last "
        "bit; on a machine that was proved, its rows lay where the storage type says. How fast an "
        "emulated medium is says nothing, so no rate stands here."
    )
    table = Table(
        f"{count_text(len(rows), 'run')} on emulated media",
        ("scenario", "storage type", "machine", "hits", "AUC", "commit"),
        [
            (
                row.scenario,
                row.storage_type,
                row.machine_label,
                "–" if row.hit_rate is None else f"{row.hit_rate:.1%}",
                "–" if row.auc is None else f"{row.auc:.3f}",
                row.commit,
            )
            for row in rows
        ],
        numeric=(3, 4),
    )
    return Section("works", _TITLE, [text, table])
