"""Compares servers with DRAM to servers with PMem and a small cache: the hourly cost of a large
table, and how fast one server trains its rows.

    python scenarios/servers/price_against_speed.py [--table-gib 500] [--batches 200]

Rates are modelled: each tier takes as long as on the named device, or as here if this computer is
slower. Rows and batches are the same everywhere, to the bit. Machines and prices:
lab/pmemlab/model/planning/prices.yaml.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from servers import free_port, server, sessions_folder

import embstore as es
from pmemlab.model.devices import load_device
from pmemlab.model.planning.prices import Prices, load_prices
from pmemlab.workloads.command_line import positive, positive_number

_DIM = 16
_ROW_BYTES = 2 * 4 * _DIM  # weights and Adagrad's slot
_KEYS = 200_000
_IDS = 20_000  # a batch
_GIB = 1 << 30
_COLUMNS = 110


@dataclass(frozen=True)
class Choice:
    """A kind of server. devices: one per tier, first tier first; the rows lie in the last tier.

    cached: the share of rows in the tier before it; None if there is no such tier.
    """

    machine: str
    devices: tuple[str, ...]
    cached: float | None

    def option(self) -> es.EmbeddingVariableOption:
        devices = [load_device(name) for name in self.devices]
        if self.cached is None:
            storage = es.StorageOption(devices=devices)
        else:
            storage = es.StorageOption(
                es.StorageType.DRAM_PMEM,
                [None, es.cluster.NODE_PMEM],
                [int(self.cached * _KEYS) * _ROW_BYTES, 2 * _KEYS * _ROW_BYTES],
                devices=devices,
            )
        return es.EmbeddingVariableOption(storage_option=storage)

    def servers(self, prices: Prices, table_bytes: int) -> int:
        """Returns the number of servers that hold the rows' floats."""
        holding = prices.machine(self.machine).holding_of(self.devices[-1])
        assert holding is not None, f"{self.machine} has no {self.devices[-1]}"
        return math.ceil(table_bytes / holding.capacity_bytes)


_DRAM, _PMEM = "ddr4-2666-x6", "optane-100-x6"
_CHOICES = [
    Choice("ecs.r6e.13xlarge", (_DRAM,), None),
    *(Choice("ecs.re6p.13xlarge", (_DRAM, _PMEM), cached) for cached in (0.2, 0.05, 0.01)),
]


@dataclass(frozen=True)
class Trained:
    ids_per_s: float  # of the median batch, since other programs use this computer, too
    in_first_tier: float  # share of the rows, at the end
    digest: str  # of everything known of the rows


def train(choice: Choice, batches: int) -> Trained:
    """Trains on one shard. Every key has a row before the clock starts."""
    random = np.random.default_rng(1)
    ids = [np.minimum(random.zipf(1.2, _IDS), _KEYS) - 1 for _ in range(batches)]
    grads = random.standard_normal((_IDS, _DIM)).astype(np.float32)
    with es.get_embedding_variable(
        "items",
        _DIM,
        initializer=es.initializers.RandomUniform(-0.1, 0.1, seed=1),
        optimizer=es.optimizers.Adagrad(0.05),
        ev_option=choice.option(),
        shards=1,
    ) as items:
        for keys in np.split(np.arange(_KEYS), 20):
            items.apply_gradients(keys, np.zeros((keys.size, _DIM), np.float32))
        items.drain()
        took_s = []
        for batch in track(ids, choice.machine, console=Console(stderr=True), transient=True):
            began = time.perf_counter()
            items.lookup(batch, train=True)
            items.apply_gradients(batch, grads)
            took_s.append(time.perf_counter() - began)
        items.drain()
        tiers = items.stats()["tiers"]
        digest = hashlib.sha256()
        for column in items.export().values():
            digest.update(column.tobytes())
        return Trained(
            _IDS / statistics.median(took_s), tiers[0]["rows"] / _KEYS, digest.hexdigest()
        )


def compare(table_gib: float, batches: int) -> Table:
    prices = load_prices()
    table = Table(title=f"{table_gib:g} GiB of rows; rates are modelled", title_justify="left")
    for column in ("server", "rows in", "in DRAM"):
        table.add_column(column)
    for column in ("servers", "USD/h", "M ids/s of one", "USD per 10^9 ids"):
        table.add_column(column, justify="right")
    digests = set()
    for choice in _CHOICES:
        trained = train(choice, batches)
        digests.add(trained.digest)
        machine = prices.machine(choice.machine)
        servers = choice.servers(prices, int(table_gib * _GIB))
        table.add_row(
            machine.name,
            choice.devices[-1],
            f"{trained.in_first_tier:.0%}",
            str(servers),
            f"{servers * machine.usd_per_hour:.2f}",
            f"{trained.ids_per_s / 1e6:.2f}",
            f"{machine.usd_per_hour / 3600 * 1e9 / trained.ids_per_s:.3f}",
        )
    if len(digests) != 1:
        raise SystemExit("rows differ between the servers")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--table-gib", type=positive_number, default=500.0)
    parser.add_argument("--batches", type=positive, default=200)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(sessions_folder())
        pmem = stack.enter_context(tempfile.TemporaryDirectory(prefix="pmem-", dir="/dev/shm"))
        at = f"127.0.0.1:{free_port()}"
        served = stack.enter_context(server(folder, "--bind_ip", at, "--pmem", pmem))
        os.environ.update(RAY_ADDRESS=served.address, RAY_TMPDIR=str(folder))
        Console(width=_COLUMNS).print(compare(given.table_gib, given.batches))


if __name__ == "__main__":
    main()
