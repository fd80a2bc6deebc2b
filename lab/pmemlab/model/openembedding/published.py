"""The times and costs that the paper published, from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pmemlab.errors import LabError
from pmemlab.model.openembedding.fit import FitInputs
from pmemlab.schema import Document, FieldError, File, From, Must, Positive, Text

__all__ = ["Published", "load_published"]

_FILE: Final = Path(__file__).with_name("published.yaml")
_FITTED_GPUS = ("dram_ps", (4, 8, 16)), ("pmem_hash", (4,))

_At = Annotated[float, From(int | float, lambda at: at)]  # an integer stays one
Series = Annotated[
    dict[_At, Positive],
    Must("a mapping of numbers to numbers, all above 0", lambda series: series and min(series) > 0),
]
_ByEngine = Annotated[dict[str, Series], Must("a mapping of engines to series", len, True)]
_ByName = Annotated[dict[str, Positive], Must("a mapping of names to numbers", len, True)]


def _fit_inputs(fitted: dict[str, dict[float, float]]) -> FitInputs:
    for engine, gpus in _FITTED_GPUS:
        if tuple(fitted.get(engine, {})) != gpus:
            raise FieldError(f"must have the times on {gpus} GPUs alone", engine)
    return FitInputs(*fitted["dram_ps"].values(), *fitted["pmem_hash"].values())


@dataclass(frozen=True)
class Published(Document):
    """The paper's figures. fitted: the four times that the model is fitted to. The other fields are
    by engine, then by the value on the horizontal axis of the paper's figure.
    """

    source: Text
    fitted: Annotated[FitInputs, From(_ByEngine, _fit_inputs)]
    plain: _ByEngine
    with_checkpoints: _ByEngine
    checkpoint_interval: _ByEngine
    cache_size: Series
    miss_rate_percent: Series
    skew: _ByEngine
    recovery_s: _ByName
    epoch_hours: _ByName
    epoch_dollars: _ByName


def load_published(path: Path = _FILE) -> Published:
    """Reads the file. Raises LabError, which names file, line and field."""
    return File.from_yaml(path, LabError).read(Published)
