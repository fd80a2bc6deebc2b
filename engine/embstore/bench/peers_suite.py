"""`peers`: other projects' tables and stores on the same ids, and this computer's own limits."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.table import Table

from embstore.bench import computer_limits
from embstore.bench.arguments import CLOCK, SEED, Argument, count, fraction, path
from embstore.bench.computer_limits import Limit
from embstore.bench.contenders import (
    Contender,
    Embstore,
    HandWritten,
    Ids,
    Rows,
    TorchSparse,
    scrambled_keys,
)
from embstore.bench.file_systems import file_system_of
from embstore.bench.measure import Figure, compare
from embstore.bench.peer_contenders import FbgemmTbe, TensorFlowVariable, TfraTable
from embstore.bench.report import Report
from embstore.bench.rows_suite import OPERATIONS, run_batches
from embstore.bench.stores import Sizes, UnavailableError, open_store
from embstore.bench.tables import number, table, unavailable_table
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf
from embstore.errors import StorageError

YARDSTICK = HandWritten.name
IN_MEMORY: dict[str, Callable[[Ids, int], Contender]] = {
    "embstore": Embstore,
    YARDSTICK: HandWritten,
    "PyTorch": TorchSparse,
    "FBGEMM": FbgemmTbe,
    "TensorFlow": TensorFlowVariable,
    "TFRA": TfraTable,
}
ON_DISK = ("DRAM_SSDHASH", "DRAM_LEVELDB", "LevelDB", "RocksDB", "LMDB")
NAMES = (*IN_MEMORY, *ON_DISK)
# The packages of peers; all other peers are always available.
_PACKAGES = {
    "PyTorch": "torch",
    "FBGEMM": "fbgemm_gpu",
    "TensorFlow": "tensorflow",
    "TFRA": "tensorflow_recommenders_addons",
}
_CHECKED_IDS = 1000


@dataclass(frozen=True)
class PeersOptions:
    """The suite's options. Quote results with the defaults."""

    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 1_000_000
    dims: Annotated[tuple[int, ...], count("dims of tables (default: 16)", "dim")] = (16,)
    first_tier: Annotated[
        float,
        fraction(
            "part of the rows that the DRAM tier above embstore's files, and RocksDB's cache, hold "
            "(default: %(default)s)"
        ),
    ] = 0.1
    # 4096 samples of 26 categorical columns
    batch_size: Annotated[int, count("number of ids in a batch (default: %(default)s)")] = 106_496
    zipf_exponent: float = 1.05
    batches: Annotated[int, count("number of batches in a round (default: %(default)s)")] = 5
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 5
    peers: Annotated[
        tuple[str, ...],
        Argument(
            f"peers to measure beside the {YARDSTICK} (default: all that are installed)",
            flag="peer",
            choices=NAMES,
        ),
    ] = NAMES
    path: Annotated[Path | None, path()] = None
    clock: Annotated[str, CLOCK] = "wall"
    seed: Annotated[int, SEED] = 1


@dataclass(frozen=True)
class PeerResult:
    """A result. ids_per_s: the ratio is to the hand-written loop's rate in the same rounds."""

    operation: str
    dim: int
    peer: str
    is_on_disk: bool
    ids_per_s: Figure


@dataclass(frozen=True)
class PeersResults:
    results: list[PeerResult]
    limits: list[Limit]
    unavailable: dict[str, str]  # the reason, by peer


def advance_count(options: PeersOptions) -> int:
    a_dim = len(_chosen_peers(options)) + len(OPERATIONS) * (options.rounds + 1)
    return computer_limits.LIMIT_COUNT + len(options.dims) * a_dim


def measure(options: PeersOptions, watcher: Watcher) -> PeersResults:
    """Runs the suite. Leaves no file behind. Raises StorageError if a peer's rows differ from the
    loop's.
    """
    results = PeersResults([], [], {})
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=options.path) as folder:
        watcher.begin("this computer's limits")
        results.limits.extend(computer_limits.measure(Path(folder), watcher.advance))
        for dim in options.dims:
            results.results.extend(
                _measure_dim(options, dim, Path(folder), results.unavailable, watcher)
            )
    return results


def _measure_dim(
    options: PeersOptions, dim: int, folder: Path, unavailable: dict[str, str], watcher: Watcher
) -> Iterator[PeerResult]:
    random = np.random.default_rng(options.seed)
    shape = (options.batch_size, dim)
    grads = random.standard_normal(shape, np.float32) * np.float32(0.01)
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    ranks = [zipf.draw(options.batch_size) for _ in range(options.batches)]
    with ExitStack() as stack:
        peers: dict[str, Contender] = {}
        for name in _chosen_peers(options):
            watcher.begin(f"dim {dim}: {name}, loading")
            try:
                peer = stack.enter_context(closing(_open_peer(options, name, dim, folder)))
                peer.load()
                peer.settle()
                peers[name] = peer
            except (UnavailableError, ImportError, OSError) as error:
                unavailable[name] = str(error)
            watcher.advance()
        batches = {name: [peer.ids_of(batch) for batch in ranks] for name, peer in peers.items()}
        for operation in OPERATIONS:
            watcher.begin(f"dim {dim}: {operation}")
            outs = {name: np.empty(shape, np.float32) for name in peers}
            figures = compare(
                {
                    name: [partial(_run, peer, operation, batches[name], outs[name], grads)]
                    for name, peer in peers.items()
                },
                options.batches * options.batch_size,
                yardstick=YARDSTICK,
                rounds=options.rounds,
                on_round=watcher.advance,
                clock=options.clock,
            )
            for name, figure in figures.items():
                watcher.show_result(
                    f"dim {dim}: {operation}, {name}: {figure.as_text(1e6, 'M ids/s')}"
                )
                yield PeerResult(operation, dim, name, name in ON_DISK, figure)
        _check_rows(peers, ranks[0][:_CHECKED_IDS], dim)


def _run(peer: Contender, operation: str, batches: list[object], out: Rows, grads: Rows) -> None:
    """Runs each batch until the moves of rows that it causes are done."""
    for ids in batches:
        run_batches(peer, operation, [ids], out, grads)
        peer.settle()


def _chosen_peers(options: PeersOptions) -> list[str]:
    """Returns the chosen peers and the yardstick, which all rows are compared with."""
    return [name for name in NAMES if name in options.peers or name == YARDSTICK]


def _open_peer(options: PeersOptions, name: str, dim: int, folder: Path) -> Contender:
    """Opens a peer. Raises UnavailableError, ImportError or OSError if that isn't possible."""
    keys = scrambled_keys(options.rows, options.seed)
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise UnavailableError(f"the Python package {package} isn't installed")
    if name in IN_MEMORY:
        return IN_MEMORY[name](keys, dim)
    sizes = Sizes(options.rows, max(1, round(options.first_tier * options.rows)), 0, dim)
    own = folder / f"{name}-{dim}"
    own.mkdir()
    return open_store(name, keys, sizes, own)


def _check_rows(peers: dict[str, Contender], ranks: Ids, dim: int) -> None:
    """Raises StorageError if a peer's rows differ from the yardstick's by more than rounding errors
    after training on the same batches, to detect a peer that is fast but wrong.
    """
    rows = {
        name: np.asarray(peer.lookup(peer.ids_of(ranks), np.empty((ranks.size, dim), np.float32)))
        for name, peer in peers.items()
    }
    expected = rows[YARDSTICK]
    for name, own in rows.items():
        if not np.allclose(own, expected, rtol=1e-3, atol=1e-4):
            raise StorageError(
                f"{name} has other rows than the {YARDSTICK} after the same steps (they differ by "
                f"{np.nanmax(np.abs(own - expected)):g}): its figures mean nothing"
            )


def to_json(options: PeersOptions, results: PeersResults) -> dict[str, object]:
    return {
        "yardstick": YARDSTICK,
        "file_system": file_system_of(options.path),
        **asdict(results),
    }


OPTIONS = PeersOptions


def run(options: PeersOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    tables = [_rate_table(results.results), _limit_table(results.limits)]
    if results.unavailable:
        tables.append(unavailable_table(("peer",), results.unavailable.items()))
    return Report(tables, to_json(options, results))


def _rate_table(results: list[PeerResult]) -> Table:
    rows = [
        (
            str(result.dim),
            result.operation,
            "on disk" if result.is_on_disk else "in DRAM",
            result.peer,
            f"{result.ids_per_s.median / 1e6:.2f}",
            number(result.ids_per_s.ratio, 3),
        )
        for result in results
    ]
    return table(
        f"Zipf ids, one thread: million ids/s, and their ratio to the {YARDSTICK}'s",
        ("dim", "operation", "rows lie", "peer"),
        ("M ids/s", "ratio"),
        rows,
        caption="all rows in DRAM, or on disk through the page cache: what the software costs",
        one_line="all",
        section=2,
    )


def _limit_table(limits: list[Limit]) -> Table:
    rows = [
        (limit.what, limit.why_not if limit.rate is None else f"{limit.rate:,.1f}", limit.unit)
        for limit in limits
    ]
    return table("Greatest rates of this computer", ("",), ("rate",), rows, remark=True)
