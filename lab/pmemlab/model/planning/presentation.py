"""Presents plans as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pmemlab.model.planning.plan import ExcludedStorage, Plan, Plans, Workload
from pmemlab.model.planning.planned_tables import PlannedTable
from pmemlab.model.planning.popularity import CountedRows
from pmemlab.model.planning.prices import Prices
from pmemlab.quantities import bytes_text, figure_text, rate_text

__all__ = ["plans_document", "plans_table"]

_SHOWN_REASONS = 6


def plans_document(plans: Plans, prices: Prices) -> dict[str, Any]:
    """Returns a document for JSON. Every figure is modelled; a field's name ends with its unit."""
    return {
        "kind": "modelled",
        "workload": _workload_document(plans.workload),
        "settings": asdict(plans.settings),
        "cpu": asdict(plans.cpu),
        "prices": {
            "path": str(prices.path),
            "hours_a_month": prices.hours_a_month,
            "machines": [asdict(machine) for machine in prices.machines],
        },
        "plans": [{"rank": rank, **asdict(plan)} for rank, plan in enumerate(plans.plans, 1)],
        "left_out": [asdict(each) for each in plans.left_out],
    }


def _workload_document(workload: Workload) -> dict[str, Any]:
    """Returns the workload for JSON. A single table's fields are among the workload's fields."""
    tables = [
        {
            "name": table.name,
            "rows": table.rows,
            "dim": table.dim,
            "optimizer": table.optimizer.name,
            "popularity": table.popularity.text,
            "row_bytes": table.shape.row_bytes,
        }
        for table in workload.tables
    ]
    if len(tables) == 1:
        first = {name: value for name, value in tables[0].items() if name != "name"}
    else:
        first = {
            "tables": [
                {**each, "ids_a_sample": table.ids_a_sample}
                for each, table in zip(tables, workload.tables, strict=True)
            ]
        }
    return {
        **first,
        "lookups_per_s": workload.lookups_per_s,
        "batch_ids": workload.batch_ids,
        "training": workload.training,
        "cache_strategy": workload.cache_strategy.name,
    }


def plans_table(plans: Plans, top: int | None = None) -> RenderableType:
    """Returns a table of plans, readable at 100 columns. top: number of plans to show;
    None: all.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column(
        "storage type, machines\ntier, device, bytes, hit rate", ratio=1, overflow="fold"
    )
    table.add_column("step\nms", justify="right")
    table.add_column("look-ups/s\na machine", justify="right")
    table.add_column("$ a\nmonth", justify="right", no_wrap=True)
    table.add_column("$ / 1 M\nlook-ups", justify="right")
    shown = plans.plans[:top]
    for rank, plan in enumerate(shown, 1):
        table.add_row(
            str(rank),
            _tiers(plan),
            figure_text(plan.step_ms),
            rate_text(plan.lookups_per_s),
            "-" if plan.usd_per_month is None else f"{plan.usd_per_month:,.0f}",
            "-" if plan.usd_per_million_lookups is None else f"{plan.usd_per_million_lookups:.2g}",
        )
    return Group(table, Text("\n".join(_notes(plans, len(shown)))))


def _tiers(plan: Plan) -> str:
    machines_text = "" if plan.machine is None else f" in {plan.machines} × {plan.machine}"
    lines = [f"{plan.storage_type}{machines_text}"]
    lines += [
        f" {tier.kind} {tier.device} {bytes_text(tier.bytes)} {tier.hit_rate:.1%}"
        for tier in plan.tiers
    ]
    lines.append(f" index {plan.index_device} {bytes_text(plan.index_bytes)}")
    return "\n".join(lines)


def _notes(plans: Plans, shown: int) -> list[str]:
    workload, cpu = plans.workload, plans.cpu
    usage = "trained" if workload.training else "served"
    notes = [
        f"Modelled: {_tables_text(workload.tables)}, {usage} "
        f"{workload.lookups_per_s:.4g} look-ups/s, "
        f"{workload.cache_strategy.name}, batches of {workload.batch_ids} ids.",
        f"CPU: {cpu.ns_per_lookup:.1f} ns a look-up ({cpu.source}), "
        f"{cpu.ns_per_moved_row:.0f} ns a row that moves.",
        "A step is one thread's batch. The price of 1 M look-ups is at the requested rate.",
    ]
    for table in workload.tables:
        if isinstance(table.popularity, CountedRows) and table.popularity.are_few:
            notes.append(
                f"{table.name}: {table.popularity.text} are few for its rows, so that hit rates "
                "are too high; give more."
            )
    if any(plan.storage_type.startswith("HBM") for plan in plans.plans[:shown]):
        notes.append(
            "HBM: look-ups and updates stay on the GPU. Bandwidths are the makers', and waits for "
            "the host don't count, so these rates are bounds."
        )
    if shown < len(plans.plans):
        notes.append(f"{len(plans.plans) - shown} more: --top, or --json FILE.")
    for why in dict.fromkeys(p.why_unpriced for p in plans.plans[:shown] if p.why_unpriced):
        notes.append(f"Without a price: {why}; add one, and give the file by --prices.")
    reasons: dict[str, list[ExcludedStorage]] = {}
    for each in plans.left_out:
        reasons.setdefault(each.why, []).append(each)
    for why, these in list(reasons.items())[:_SHOWN_REASONS]:
        others = f" and {len(these) - 1} more" if len(these) > 1 else ""
        exclusion = f"{these[0].storage_type} on {', '.join(these[0].devices)}{others}"
        notes.append(f"Left out: {exclusion}: {why}")
    if len(reasons) > _SHOWN_REASONS:
        notes.append(f"Left out for other reasons: {len(reasons) - _SHOWN_REASONS}; --json FILE.")
    return notes


def _tables_text(tables: Sequence[PlannedTable]) -> str:
    if len(tables) == 1:
        table = tables[0]
        return (
            f"{table.rows:.4g} rows of {table.shape.row_bytes} bytes, asked for by "
            f"{table.popularity.text}"
        )
    rows = sum(table.rows for table in tables)
    size = sum(table.rows * table.shape.row_bytes for table in tables)
    return f"{len(tables)} tables of {rows:.4g} rows, {bytes_text(size)}"
