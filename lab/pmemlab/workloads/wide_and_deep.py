"""Wide & Deep, as in DeepRec's modelzoo, with its embeddings in the engine.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. Every categorical column has two
tables: a row of one weight for the linear part, trained by FTRL, and a row of `embedding_dim` for
the deep part, trained by Adagrad. The dense layers are PyTorch's, trained by Adagrad. Learning
rates and initial values are the modelzoo's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adagrad import adagrad

import embstore as es
import embstore.torch as es_torch
from pmemlab.workloads.batches import CATEGORICAL_COLUMNS, DENSE_COLUMNS, Batch

DEEP_LEARNING_RATE: Final = 0.01
LINEAR_LEARNING_RATE: Final = 0.2
INITIAL_ACCUMULATOR: Final = 0.1
_FILLED_AT_ONCE: Final = 50_000


@dataclass(frozen=True)
class ModelOptions:
    """The size of a model. The defaults are the modelzoo's, but for its per-column dimensions."""

    embedding_dim: int = 16
    hidden_units: tuple[int, ...] = (1024, 512, 256)
    seed: int = 2021


class EmbeddingTables:
    """A model's variables: for each categorical column a wide one and a deep one.

    A context manager; leaving it closes the variables.
    """

    def __init__(self, storage: es.StorageOption, options: ModelOptions) -> None:
        """Make the variables, each with the whole of `storage` to itself.

        Raises embstore.errors.EmbStoreError where the engine can't, with none left open.
        """
        ev_option = es.EmbeddingVariableOption(storage_option=storage)
        self.wide: list[es.EmbeddingVariable] = []
        self.deep: list[es.EmbeddingVariable] = []
        try:
            for number, column in enumerate(CATEGORICAL_COLUMNS):
                self.wide.append(
                    es.get_embedding_variable(
                        f"wide_{column}",
                        embedding_dim=1,
                        initializer=es.initializers.Zeros(),
                        optimizer=es.optimizers.Ftrl(learning_rate=LINEAR_LEARNING_RATE),
                        ev_option=ev_option,
                    )
                )
                self.deep.append(
                    es.get_embedding_variable(
                        f"deep_{column}",
                        embedding_dim=options.embedding_dim,
                        initializer=es.initializers.TruncatedNormal(
                            stddev=options.embedding_dim**-0.5, seed=options.seed + number
                        ),
                        optimizer=es.optimizers.Adagrad(
                            learning_rate=DEEP_LEARNING_RATE,
                            initial_accumulator_value=INITIAL_ACCUMULATOR,
                        ),
                        ev_option=ev_option,
                    )
                )
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[es.EmbeddingVariable]:
        yield from self.wide
        yield from self.deep

    def fill(self, keys_of_column: Callable[[int], NDArray[np.int64]]) -> None:
        """Give each of a column's keys, (n,) int64, a row in both of its tables, by updates that
        change no weight. In their order: of keys that are as frequent, the last stay uppermost."""
        for variables in (self.wide, self.deep):
            for column, variable in enumerate(variables):
                for keys in _parts(keys_of_column(column), _FILLED_AT_ONCE):
                    variable.apply_gradients(keys, np.zeros((keys.size, variable.dim), np.float32))
                variable.drain()

    def close(self) -> None:
        for variable in self:
            variable.close()

    def __enter__(self) -> EmbeddingTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parts(keys: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, keys.size, size):
        yield keys[start : start + size]


class LookupClock:
    """How many rows were looked up, and how long that took."""

    def __init__(self) -> None:
        self.rows = 0
        self.seconds = 0.0

    def reset(self) -> None:
        self.rows, self.seconds = 0, 0.0


class WideAndDeep(nn.Module):
    """Maps n rows to n logits. REQUIRES: `torch.manual_seed` was called, to repeat a run."""

    def __init__(self, tables: EmbeddingTables, options: ModelOptions) -> None:
        super().__init__()
        self.lookup_clock = LookupClock()
        self._wide_embeddings = nn.ModuleList(es_torch.Embedding(var) for var in tables.wide)
        self._deep_embeddings = nn.ModuleList(es_torch.Embedding(var) for var in tables.deep)
        self._wide_dense = nn.Linear(len(DENSE_COLUMNS), 1)
        nn.init.zeros_(self._wide_dense.weight)
        nn.init.zeros_(self._wide_dense.bias)
        widths = (
            len(DENSE_COLUMNS) + len(CATEGORICAL_COLUMNS) * options.embedding_dim,
            *options.hidden_units,
        )
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [_glorot_linear(inputs, outputs), nn.ReLU()]
        layers.append(_glorot_linear(widths[-1], 1))
        self._deep_layers = nn.Sequential(*layers)

    def forward(self, dense: Tensor, keys: Tensor) -> Tensor:
        """Return logits (n,) for dense float32 (n, 13) and keys int64 (n, 26)."""
        columns = keys.t().contiguous()
        started = time.perf_counter()
        wide = _look_up(self._wide_embeddings, columns)
        deep = _look_up(self._deep_embeddings, columns)
        self.lookup_clock.seconds += time.perf_counter() - started
        self.lookup_clock.rows += 2 * keys.numel()
        wide_logits: Tensor = torch.cat(wide, dim=1).sum(dim=1) + self._wide_dense(dense).squeeze(1)
        deep_logits: Tensor = self._deep_layers(torch.cat([dense, *deep], dim=1)).squeeze(1)
        return wide_logits + deep_logits

    def predict(self, batch: Batch) -> NDArray[np.float32]:
        """Return the chance of a click, float32 (n,); trains nothing."""
        with torch.no_grad():
            logits = self(torch.from_numpy(batch.dense), torch.from_numpy(batch.keys))
            chances: NDArray[np.float32] = torch.sigmoid(logits).numpy()
        return chances


class DenseAdagrad:
    """Adagrad over a model's dense parameters, as TensorFlow has it: no epsilon, no decay.

    It is PyTorch's own, by its functional form: the class around it imports PyTorch's compiler on
    first use, which takes an emulated machine half a minute.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters: list[Tensor] = list(es_torch.dense_parameters(model))
        self._sums = [torch.full_like(p, INITIAL_ACCUMULATOR) for p in self._parameters]
        self._steps = [torch.zeros(()) for _ in self._parameters]

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Parameters, and what was summed up of their gradients, by name. Not copies."""
        return {name: tensor.detach().numpy() for name, tensor in self._tensors().items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, NDArray[np.float32]]) -> None:
        """Have parameters and sums as `state` gave them, of a model of the same options.

        Raises ValueError, which names one that is missing, too many or of another shape; nothing
        has changed then.
        """
        tensors = self._tensors()
        for name in tensors.keys() ^ state.keys():
            raise ValueError(f"{name} is in {'the file' if name in state else 'the model'} alone")
        for name, tensor in tensors.items():
            if state[name].shape != tuple(tensor.shape):
                raise ValueError(
                    f"{name} has shape {state[name].shape}, and {tuple(tensor.shape)} in the model"
                )
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(state[name]))

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{kind}_{number}": tensor
            for kind, tensors in (
                ("parameter", self._parameters),
                ("sum", self._sums),
                ("steps", self._steps),
            )
            for number, tensor in enumerate(tensors)
        }

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients of the last backward pass, and clear them."""
        adagrad(
            self._parameters,
            [parameter.grad for parameter in self._parameters if parameter.grad is not None],
            self._sums,
            self._steps,
            foreach=False,
            lr=DEEP_LEARNING_RATE,
            weight_decay=0.0,
            lr_decay=0.0,
            eps=0.0,
            maximize=False,
        )
        for parameter in self._parameters:
            parameter.grad = None


def _look_up(embeddings: nn.ModuleList, columns: Tensor) -> list[Tensor]:
    return [embed(column) for embed, column in zip(embeddings, columns, strict=True)]


def _glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
