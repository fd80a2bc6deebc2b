"""Converts embstore's options, optimizers and initializers to JSON for a model's configuration."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any

import numpy as np

from embstore import initializers, optimizers, options
from embstore.errors import InvalidArgumentError, UnsupportedError

__all__ = ["describe", "from_description"]

_CLASS = "embstore_class"
_NAMES = {
    name: getattr(module, name)
    for module in (initializers, optimizers, options)
    for name in module.__all__
    if isinstance(getattr(module, name), type)
}


def describe(name: str, value: Any) -> Any:
    """Returns JSON from which `from_description` makes `value` again. name: for errors."""
    plain = isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)
    if value is None or plain:
        return value
    kind = type(value)
    if _NAMES.get(kind.__name__) is kind:
        if isinstance(value, enum.Enum):
            return {_CLASS: kind.__name__, "member": value.name}
        fields = {
            field.name: describe(f"{name}.{field.name}", getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
        return {_CLASS: kind.__name__, "fields": fields}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [describe(f"{name}[{i}]", entry) for i, entry in enumerate(value)]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    raise UnsupportedError(
        f"{name} is a {kind.__name__}, which a model's configuration can't hold; leave it out of "
        "models that are saved or cloned"
    )


def from_description(description: Any) -> Any:
    if isinstance(description, list):
        return [from_description(entry) for entry in description]
    if not isinstance(description, dict):
        return description
    kind = _NAMES.get(description.get(_CLASS, ""))
    if kind is None:
        raise InvalidArgumentError(
            f"a layer's configuration names {description.get(_CLASS)!r}, which this version of "
            "embstore doesn't have"
        )
    if issubclass(kind, enum.Enum):
        return kind[description["member"]]
    return kind(**{name: from_description(entry) for name, entry in description["fields"].items()})
