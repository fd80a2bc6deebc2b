"""`gpu`: rows in a GPU's memory, against PyTorch and the bandwidth of a copy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import embstore as es
from embstore.bench.arguments import SEED, count, device, fraction
from embstore.bench.gpu_contenders import (
    OPERATIONS,
    SERVING,
    STEP,
    TRAINING,
    CopyOnGpu,
    EmbstoreOnGpu,
    GpuContender,
    TorchOnGpu,
    other_engines,
    torch_on,
)
from embstore.bench.measure import Figure, Work, compare
from embstore.bench.report import Report
from embstore.bench.tables import number, span, table
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

EMULATED: Final = "emulated"
MEANINGLESS: Final = "an emulated GPU: these rates mean nothing"
_COPIED_BYTES = 1 << 30


@dataclass(frozen=True)
class GpuOptions:
    """The suite's options. Quote results with the defaults.

    device: as in `StorageOption`.
    """

    device: Annotated[
        str, device("GPU to measure: cuda, cuda:N, or emulated, whose rates mean nothing")
    ] = "cuda"
    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 8_388_608
    dims: Annotated[tuple[int, ...], count("dims of tables (default: 16 64 128)", "dim")] = (
        16,
        64,
        128,
    )
    batch_size: Annotated[int, count("number of ids in a batch (default: %(default)s)")] = 1_048_576
    zipf_exponent: float = 1.05
    fraction: Annotated[
        float, fraction("part of the rows in HBM, in the second case (default: %(default)s)")
    ] = 0.1
    settling_batches: Annotated[
        int,
        count(
            "number of batches that are trained before timing in the second case, so that the "
            "frequencies of rows differ and fewer rows move (default: %(default)s)"
        ),
    ] = 40
    batches: Annotated[int, count("number of batches in a round (default: %(default)s)")] = 10
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 7
    seed: Annotated[int, SEED] = 1


@dataclass(frozen=True)
class GpuResult:
    """A result. in_hbm: the part of the rows in HBM. bytes_per_id: the least bytes that the
    operation reads and writes in the GPU's memory. bandwidth_ratio: the rate of these bytes, to the
    bandwidth of a copy in the same run; None if that wasn't measured."""

    operation: str
    dim: int
    in_hbm: float
    contender: str
    ids_per_s: Figure
    bytes_per_id: float
    bandwidth_ratio: float | None


@dataclass(frozen=True)
class GpuResults:
    """All results. copy_bytes_per_s: read and written. unavailable: the reason, by contender."""

    copy_bytes_per_s: float | None
    unavailable: dict[str, str]
    results: list[GpuResult]


def advance_count(options: GpuOptions) -> int:
    """Returns how often the watcher advances; copies don't count."""
    return len(options.dims) * 2 * len(OPERATIONS) * (options.rounds + 1)


def measure(options: GpuOptions, watcher: Watcher) -> GpuResults:
    """Runs the suite. Raises the error of opening the GPU: MissingLibraryError if there is none."""
    es.DeviceArray(np.zeros(1, np.int64), options.device)
    unavailable = other_engines()
    without_torch = torch_on(options.device)
    copied = None
    if without_torch is None:
        watcher.begin("copying")
        copied = _copy_bytes_per_s(options)
    else:
        unavailable = {"PyTorch": without_torch, "copy": "made by PyTorch", **unavailable}
    results: list[GpuResult] = []
    for dim in options.dims:
        for in_hbm in (1.0, options.fraction):
            watcher.begin(f"dim {dim}, {in_hbm:.0%} in HBM")
            contenders: list[GpuContender] = [
                EmbstoreOnGpu(
                    options.rows,
                    max(1, int(options.rows * in_hbm)),
                    dim,
                    options.device,
                    options.seed,
                )
            ]
            if without_torch is None and in_hbm == 1:
                contenders.append(TorchOnGpu(options.rows, dim, options.device, options.seed))
            try:
                results += _measured(options, contenders, dim, in_hbm, copied, watcher)
            finally:
                for contender in contenders:
                    contender.close()
    return GpuResults(copied, unavailable, results)


def _measured(
    options: GpuOptions,
    contenders: list[GpuContender],
    dim: int,
    in_hbm: float,
    copied: float | None,
    watcher: Watcher,
) -> list[GpuResult]:
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    batches = [zipf.draw(options.batch_size) for _ in range(options.batches)]
    random = np.random.default_rng(options.seed)
    grads = random.standard_normal((options.batch_size, dim), np.float32) * np.float32(0.01)
    if in_hbm < 1:
        settling = [zipf.draw(options.batch_size) for _ in range(options.settling_batches)]
        for each in contenders:
            each.work(STEP, settling, grads)()
    results = []
    for operation in OPERATIONS:
        work: dict[str, list[Work]] = {
            each.name: [each.work(operation, batches, grads)] for each in contenders
        }
        figures = compare(
            work,
            options.batches * options.batch_size,
            yardstick=TorchOnGpu.name,
            rounds=options.rounds,
            on_round=watcher.advance,
        )
        moved = bytes_per_id(operation, dim, batches)
        results += [
            GpuResult(
                operation,
                dim,
                in_hbm,
                name,
                figure,
                moved,
                None if copied is None else figure.median * moved / copied,
            )
            for name, figure in figures.items()
        ]
    return results


def bytes_per_id(operation: str, dim: int, batches: list[NDArray[np.int64]]) -> float:
    """Returns the least bytes that an id moves in the GPU's memory: each distinct row of a batch is
    read once, and each id's row is written. A step reads each id's gradient, and reads and writes
    the weights and the slot of each distinct row."""
    distinct = sum(np.unique(batch).size for batch in batches) / sum(map(len, batches))
    weights = 4 * dim
    look_up = distinct * weights + weights
    step = {SERVING: 0.0, TRAINING: 0.0, STEP: weights + distinct * 2 * 2 * weights}[operation]
    return look_up + step


def _copy_bytes_per_s(options: GpuOptions) -> float:
    copies = CopyOnGpu(_COPIED_BYTES, options.device)
    figures = compare(
        {copies.name: [copies.run]},
        copies.bytes_moved,
        yardstick=copies.name,
        rounds=options.rounds,
        on_round=lambda: None,
    )
    return figures[copies.name].median


def to_json(options: GpuOptions, results: GpuResults) -> dict[str, object]:
    return {
        "yardstick": TorchOnGpu.name,
        "caveat": MEANINGLESS if options.device == EMULATED else None,
        **asdict(results),
    }


OPTIONS = GpuOptions


def run(options: GpuOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    missing = table("Not measured", ("contender", "why"), (), results.unavailable.items())
    return Report([_rate_table(options, results), missing], to_json(options, results))


def _rate_table(options: GpuOptions, results: GpuResults) -> Table:
    copied = results.copy_bytes_per_s
    rows = [
        (
            str(result.dim),
            f"{result.in_hbm:.0%}",
            result.operation,
            result.contender,
            f"{result.ids_per_s.median / 1e6:.2f}",
            span(result.ids_per_s, 2),
            number(result.ids_per_s.ratio),
            number(result.bandwidth_ratio),
        )
        for result in results.results
    ]
    return table(
        f"Million ids/s on {options.device} (median; min to max), {options.rows:,} rows",
        ("dim", "in HBM", "operation", "contender"),
        ("M ids/s", "range", "of PyTorch", "of a copy"),
        rows,
        caption=MEANINGLESS
        if options.device == EMULATED
        else "a copy's bandwidth wasn't measured"
        if copied is None
        else f"of a copy: the rows' bytes by the bandwidth of a copy, {copied / 1e9:,.0f} GB/s",
        section=3,
    )
