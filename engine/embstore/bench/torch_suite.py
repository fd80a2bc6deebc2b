"""`torch`: bags of several features, by embstore's collection and by PyTorch's own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

import embstore as es
from embstore.bench.arguments import CLOCK, SEED, SKEW, count
from embstore.bench.measure import Figure, compare
from embstore.bench.report import Report
from embstore.bench.tables import number, table
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

if TYPE_CHECKING:
    from torch import Tensor

YARDSTICK = "torch.nn.EmbeddingBag"
OWN = "EmbeddingBagCollection"
RATE = 0.05

Features = dict[str, "tuple[Tensor, Tensor]"]  # ids, and the begins of bags


@dataclass(frozen=True)
class TorchOptions:
    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 77_000
    dim: Annotated[int, count("dim of tables (default: %(default)s)")] = 16
    features: Annotated[int, count("number of features and tables (default: %(default)s)")] = 26
    batch_size: Annotated[
        int, count("number of bags of each feature in a batch (default: %(default)s)")
    ] = 512
    most_ids: Annotated[
        int, count("greatest number of ids in a bag, in the second case (default: %(default)s)")
    ] = 11
    batches: Annotated[int, count("number of batches in a round (default: %(default)s)")] = 8
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 5
    skew: Annotated[float, SKEW] = 1.05
    seed: Annotated[int, SEED] = 0
    clock: Annotated[str, CLOCK] = "wall"


OPTIONS = TorchOptions

Figures = dict[str, dict[str, dict[str, Figure]]]  # ids/s, by bags, operation and modules


def advance_count(options: TorchOptions) -> int:
    return 4 * (options.rounds + 1)  # the first round isn't counted


def run(options: TorchOptions, watcher: Watcher) -> Report:
    figures = measure(options, watcher)
    return Report([_table(options, figures)], _to_json(figures))


def measure(options: TorchOptions, watcher: Watcher) -> Figures:
    es.torch  # noqa: B018 - first: its error says what is missing, and how to get it
    import torch

    figures: Figures = {}
    with ExitStack() as stack:
        for library in (torch, es):
            stack.callback(library.set_num_threads, library.get_num_threads())
            library.set_num_threads(1)
        own, theirs = _embstore_operations(options, stack), _torch_operations(options)
        for bags, most_ids in (("one id", 1), (f"1 to {options.most_ids} ids", options.most_ids)):
            batches = [_features(options, most_ids, number) for number in range(options.batches)]
            ids = sum(len(feature_ids) for batch in batches for feature_ids, _ in batch.values())
            figures[bags] = {}
            for operation in ("forward", "step"):
                watcher.begin(f"{operation}, bags of {bags}")
                figures[bags][operation] = compare(
                    {
                        YARDSTICK: [_each(theirs[operation], batches)],
                        OWN: [_each(own[operation], batches)],
                    },
                    ids,
                    yardstick=YARDSTICK,
                    rounds=options.rounds,
                    on_round=watcher.advance,
                    clock=options.clock,
                )
    return figures


def _each(do: Callable[[Features], None], batches: Sequence[Features]) -> Callable[[], None]:
    def work() -> None:
        for batch in batches:
            do(batch)

    return work


def _operations(
    bags: Callable[[Features], Tensor], optimizer: Any
) -> Mapping[str, Callable[[Features], None]]:
    import torch

    def forward(batch: Features) -> None:
        with torch.no_grad():
            bags(batch)

    def step(batch: Features) -> None:
        optimizer.zero_grad()
        bags(batch).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return {"forward": forward, "step": step}


def _embstore_operations(
    options: TorchOptions, stack: ExitStack
) -> Mapping[str, Callable[[Features], None]]:
    tables = {
        name: stack.enter_context(
            es.get_embedding_variable(
                name,
                options.dim,
                initializer=es.initializers.RandomUniform(-0.1, 0.1),
                optimizer=es.optimizers.Adagrad(RATE),
            )
        )
        for name in _names(options)
    }
    every = np.arange(options.rows)
    for variable in tables.values():  # so that each has all its rows, as PyTorch's modules have
        variable.apply_gradients(every, np.full((options.rows, options.dim), 0.01, np.float32))
    collection = es.torch.EmbeddingBagCollection(
        {name: es.torch.EmbeddingBag(variable, "sum") for name, variable in tables.items()}
    )
    return _operations(lambda batch: collection(batch).values(), es.torch.Optimizer(collection))


def _torch_operations(options: TorchOptions) -> Mapping[str, Callable[[Features], None]]:
    import torch

    # Sets the default explicitly; otherwise PyTorch warns.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    modules = torch.nn.ModuleDict(
        {
            name: torch.nn.EmbeddingBag(options.rows, options.dim, mode="sum", sparse=True)
            for name in _names(options)
        }
    )

    def bags(batch: Features) -> Tensor:
        return torch.cat([module(*batch[name]) for name, module in modules.items()], dim=1)

    return _operations(bags, torch.optim.Adagrad(modules.parameters(), RATE))


def _names(options: TorchOptions) -> list[str]:
    return [f"feature{number}" for number in range(options.features)]


def _features(options: TorchOptions, most_ids: int, number: int) -> Features:
    import torch

    random = np.random.default_rng((options.seed, most_ids, number))
    ranks = BoundedZipf(options.rows, options.skew, int(random.integers(1 << 31)))
    # Spreads ranks over the keys, as hashing does.
    spread = np.random.default_rng(options.seed).permutation(options.rows)
    features: Features = {}
    for name in _names(options):
        lengths = random.integers(1, most_ids, options.batch_size, endpoint=True)
        ids, begins = spread[ranks.draw(int(lengths.sum()))], lengths.cumsum() - lengths
        features[name] = torch.from_numpy(ids), torch.from_numpy(begins)
    return features


def _to_json(figures: Figures) -> dict[str, object]:
    return {
        "unit": "ids/s",
        "bags": {
            bags: {
                operation: {name: asdict(figure) for name, figure in of.items()}
                for operation, of in operations.items()
            }
            for bags, operations in figures.items()
        },
    }


def _table(options: TorchOptions, figures: Figures) -> Any:
    rows = [
        (
            bags,
            operation,
            name,
            *(number(rate / 1e6) for rate in (figure.median, figure.minimum, figure.maximum)),
            number(figure.ratio),
        )
        for bags, operations in figures.items()
        for operation, of in operations.items()
        for name, figure in of.items()
    ]
    return table(
        f"{options.features} tables of {options.rows:,} rows of dim {options.dim}, "
        f"{options.batch_size} bags of each, one thread; steps of Adagrad",
        ("bags of", "", "modules"),
        ("M ids/s", "from", "to", "ratio"),
        rows,
        one_line="names",
        section=2,
    )
