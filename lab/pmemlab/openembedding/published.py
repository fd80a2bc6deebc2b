"""The times and costs that the paper published, from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pmemlab.errors import LabError
from pmemlab.openembedding.fit import FitInputs
from pmemlab.yaml_fields import Fields, is_number

__all__ = ["Published", "load_published"]

_FILE: Final = Path(__file__).with_name("published.yaml")
_FITTED_GPUS = ("dram_ps", (4, 8, 16)), ("pmem_hash", (4,))

Series = dict[float, float]


@dataclass(frozen=True)
class Published:
    """fitted: the four times that the model's fit is given. The others are series by what a figure
    of the paper has on its horizontal axis, by engine.
    """

    source: str
    fitted: FitInputs
    plain: dict[str, Series]
    with_checkpoints: dict[str, Series]
    checkpoint_interval: dict[str, Series]
    cache_size: Series
    miss_rate_percent: Series
    skew: dict[str, Series]
    recovery_s: dict[str, float]
    epoch_hours: dict[str, float]
    epoch_dollars: dict[str, float]


def load_published(path: Path = _FILE) -> Published:
    """Raise LabError, which names file and field."""
    fields = Fields.of_file(path, LabError)
    fitted = _by_engine(fields, "fitted")
    for engine, gpus in _FITTED_GPUS:
        if tuple(fitted.get(engine, {})) != gpus:
            raise fields.error(f"fitted.{engine}", f"must have the times on {gpus} GPUs alone")
    published = Published(
        source=fields.text("source"),
        fitted=FitInputs(*fitted["dram_ps"].values(), *fitted["pmem_hash"].values()),
        plain=_by_engine(fields, "plain"),
        with_checkpoints=_by_engine(fields, "with_checkpoints"),
        checkpoint_interval=_by_engine(fields, "checkpoint_interval"),
        cache_size=_series(fields, "cache_size"),
        miss_rate_percent=_series(fields, "miss_rate_percent"),
        skew=_by_engine(fields, "skew"),
        recovery_s=_by_name(fields, "recovery_s"),
        epoch_hours=_by_name(fields, "epoch_hours"),
        epoch_dollars=_by_name(fields, "epoch_dollars"),
    )
    fields.finish()
    return published


def _by_engine(fields: Fields, name: str) -> dict[str, Series]:
    engines = fields.mapping(name, required=True)
    section = fields.fields_of(name, engines)
    return {engine: _series(section, engine) for engine in engines}


def _series(fields: Fields, name: str) -> Series:
    series = fields.take(name, required=True)
    if not isinstance(series, dict) or not series:
        raise fields.error(name, f"must be a mapping of numbers to numbers, not {series!r}")
    for at, value in series.items():
        if not (is_number(at) and is_number(value) and at > 0 and value > 0):
            raise fields.error(f"{name}.{at}", f"must be numbers above 0, not {at!r}: {value!r}")
    return {at: float(value) for at, value in series.items()}


def _by_name(fields: Fields, name: str) -> dict[str, float]:
    values = fields.mapping(name, required=True)
    for key, value in values.items():
        if not is_number(value) or value <= 0:
            raise fields.error(f"{name}.{key}", f"must be a number above 0, not {value!r}")
    return {key: float(value) for key, value in values.items()}
