"""The options of a run. Importing this module needs neither Keras nor the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import embstore as es

__all__ = [
    "CIN_MAPS",
    "HIDDEN_UNITS",
    "OPTIMIZERS",
    "ModelOptions",
    "TableOptions",
    "TrainingOptions",
]

HIDDEN_UNITS: Final[Mapping[str, tuple[int, ...]]] = {
    "WDL": (512, 256, 128, 32),
    "DeepFM": (400, 400, 400),
    "xDeepFM": (400, 400, 400),
}
"""Each model's default, as in OpenEmbedding's benchmark."""

CIN_MAPS: Final = (128, 128)
"""DeepCTR's default, which OpenEmbedding's benchmark uses."""

OPTIMIZERS: Final[Mapping[str, float]] = {"Adagrad": 0.05, "Adam": 0.001}
"""With learning rates that suffice for a few hundred steps; Keras's default for Adagrad, 0.001,
doesn't.
"""


@dataclass(frozen=True)
class ModelOptions:
    """A model's options. name: one of `HIDDEN_UNITS`. hidden_units: widths of the deep part's
    layers; empty: the default of `HIDDEN_UNITS`. cin_maps: feature maps of the layers of xDeepFM's
    CIN.
    """

    name: str = "DeepFM"
    embedding_dim: int = 9
    hidden_units: tuple[int, ...] = ()
    cin_maps: tuple[int, ...] = CIN_MAPS
    seed: int = 0

    @property
    def units(self) -> tuple[int, ...]:
        return self.hidden_units or HIDDEN_UNITS[self.name]

    def __str__(self) -> str:
        maps = f", CIN {self.cin_maps}" if self.name == "xDeepFM" else ""
        return f"{self.name} of dim {self.embedding_dim}, hidden units {self.units}{maps}"


@dataclass(frozen=True)
class TableOptions:
    """The storage of both tables.

    storage: each table has the whole of it. shards: processes of a Ray cluster that each table is
    spread over; None: the tables are in this process.
    """

    storage: es.StorageOption
    shards: int | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """The options of training. optimizer: one of `OPTIMIZERS`, for rows and dense parameters.
    learning_rate: None: the default of `OPTIMIZERS`.
    judge_every: steps between two evaluations on the held-out rows.
    checkpoint: a folder, written to after each epoch. load: a checkpoint to resume from.
    save: a .keras file of the trained model, without its optimizer.
    """

    batch_size: int = 4096
    epochs: int = 1
    optimizer: str = "Adagrad"
    learning_rate: float | None = None
    seed: int = 0
    judge_every: int = 200
    checkpoint: Path | None = None
    load: Path | None = None
    save: Path | None = None

    @property
    def rate(self) -> float:
        return OPTIMIZERS[self.optimizer] if self.learning_rate is None else self.learning_rate
