"""The command `pmemlab model plan`."""

from __future__ import annotations

import argparse
import json
import math

from rich.console import Console

from embstore.options import CacheStrategy
from pmemlab.errors import PlanError
from pmemlab.model.devices import device_names
from pmemlab.model.planning.cpu_work import (
    NS_PER_MOVED_ROW,
    CpuWork,
    measure_cpu_work_of_all,
)
from pmemlab.model.planning.plan import Workload, make_plans
from pmemlab.model.planning.planned_tables import PlannedTable, load_tables, planned_table
from pmemlab.model.planning.presentation import plans_document, plans_table
from pmemlab.model.planning.prices import load_prices
from pmemlab.model.planning.settings import Settings, require
from pmemlab.model.planning.tiers import named_devices, storage_type_by_name
from pmemlab.results import results_console
from pmemlab.schema import size_of_option
from pmemlab.whole_file import check_output, write_output

__all__ = ["plan"]


def plan(arguments: argparse.Namespace) -> int:
    check_output("--json", arguments.json)
    workload = Workload(
        tables=_tables(arguments),
        lookups_per_s=arguments.lookups_per_s,
        batch_ids=arguments.batch_size,
        training=not arguments.serving,
        cache_strategy=CacheStrategy[arguments.cache_strategy],
    )
    settings = Settings(
        threads=arguments.threads,
        first_tier_fractions=tuple(dict.fromkeys(arguments.first_tier_fraction)),
        middle_tier_fraction=arguments.middle_tier_fraction,
        dram_bytes=size_of_option("--dram-per-machine", arguments.dram_per_machine, PlanError),
        usable_fraction=arguments.usable_fraction,
        max_machines=arguments.max_machines,
    )
    types = arguments.storage_types
    storage_types = None if types is None else [storage_type_by_name(name) for name in types]
    require(arguments.top >= 1, "--top", arguments.top, "must be 1 or more")
    prices = load_prices(arguments.prices).restricted_to(arguments.machines)
    pool = named_devices(arguments.devices or device_names())
    messages = Console(stderr=True, highlight=False)
    with messages.status("measuring the CPU's work on a look-up") as status:
        cpu = _cpu_work(arguments.cpu_ns_per_lookup, workload)
        plans = make_plans(workload, pool, prices, cpu, settings, storage_types, status.update)
    if arguments.json is not None:
        text = json.dumps(plans_document(plans, prices), indent=1)
        write_output("--json", arguments.json, text + "\n")
    results_console().print(plans_table(plans, arguments.top))
    return 0


def _tables(arguments: argparse.Namespace) -> tuple[PlannedTable, ...]:
    table_options = ("rows", "dim", "optimizer", "skew", "ids", "recorded")
    chosen = {
        name: value for name in table_options if (value := getattr(arguments, name)) is not None
    }
    if arguments.tables is not None:
        if chosen:
            raise PlanError(
                f"--{next(iter(chosen))}: the file of --tables says it for each table; leave it out"
            )
        return load_tables(arguments.tables)
    if "rows" in chosen:
        chosen["rows"] = _rows(chosen["rows"])
    return (planned_table("table", **chosen),)


def _rows(value: float) -> int:
    require(value.is_integer(), "--rows", value, "must be a whole number")
    return int(value)


def _cpu_work(chosen_ns: float | None, workload: Workload) -> CpuWork:
    if chosen_ns is None:
        return measure_cpu_work_of_all(workload.tables, workload.shares, training=workload.training)
    is_time = 0 < chosen_ns < math.inf
    require(is_time, "--cpu-ns-per-lookup", chosen_ns, "must be above 0, and finite")
    return CpuWork(chosen_ns, NS_PER_MOVED_ROW, "given")
