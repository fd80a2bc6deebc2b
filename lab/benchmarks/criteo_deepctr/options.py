"""What a run is asked for. Importing it needs neither Keras nor the engine."""

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
"""Each model's, as in OpenEmbedding's benchmark."""

CIN_MAPS: Final = (128, 128)
"""DeepCTR's default, which that benchmark leaves as it is."""

OPTIMIZERS: Final[Mapping[str, float]] = {"Adagrad": 0.05, "Adam": 0.001}
"""With rates by which they learn in a few hundred steps; Keras's own of Adagrad, 0.001, doesn't."""


@dataclass(frozen=True)
class ModelOptions:
    """name: of `HIDDEN_UNITS`. hidden_units: of the deep part's layers; those there where empty.
    cin_maps: feature maps of the layers of xDeepFM's CIN."""

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
    """Where the rows of both tables lie.

    storage: each table has the whole of it. shards: processes of a Ray cluster that each table is
    spread over; None: it is in this process.
    """

    storage: es.StorageOption
    shards: int | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """optimizer: of `OPTIMIZERS`, for rows and dense parameters.
    learning_rate: the one there where None.
    judge_every: steps between two looks at the held-out rows.
    checkpoint: a folder, written to after each epoch. load: one to go on from.
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
