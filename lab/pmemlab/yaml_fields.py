"""The fields of a YAML file, taken one by one, so that every error names the file and the field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

__all__ = ["Fields", "is_number", "parse_size"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: object) -> int:
    """Bytes of "512M", "1G", "4096" or 4096 (binary units). Raises ValueError."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = re.fullmatch(r"([1-9][0-9]*)([KMGT]?)", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no size: give bytes, or a number with K, M, G or T")
    return int(match[1]) * _UNITS[match[2]]


class Fields:
    """One mapping of a file. What each method takes is gone; `finish` refuses what is left."""

    def __init__(
        self, path: Path, document: object, error_type: Callable[[str], Exception], prefix: str = ""
    ) -> None:
        """Raise `error_type` where the document is no mapping.

        prefix: of the fields' names in errors, as "expect." is for those of a section.
        """
        self.path = path
        self._prefix = prefix
        self._error_type = error_type
        if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
            where = prefix.rstrip(".") or "the file"
            raise error_type(f"{path}: {where}: must be a mapping of fields, not {document!r}")
        self._document: dict[str, Any] = dict(document)
        self._known: list[str] = []

    @staticmethod
    def of_file(path: Path, error_type: Callable[[str], Exception]) -> Fields:
        """The top level of a file. Raises `error_type`, naming the file."""
        import yaml  # only here: programs in the machines import this package and read no YAML

        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise error_type(f"{path}: can't be read: {error}") from error
        except yaml.YAMLError as error:
            raise error_type(f"{path}: not YAML: {error}") from error
        return Fields(path, document, error_type)

    def error(self, name: str, problem: str) -> Exception:
        """The error to raise for a field."""
        return self._error_type(f"{self.path}: {self._prefix}{name}: {problem}")

    def complete(self, other: Fields, merged: Collection[str] = ()) -> None:
        """Take over the other's fields that are missing here; of mappings that are `merged`, what
        is missing in them. What was taken from the other before is not taken over.
        """
        for name, value in other._document.items():
            own = self._document.setdefault(name, value)
            if name in merged and isinstance(own, dict) and isinstance(value, dict):
                self._document[name] = {**value, **own}

    def finish(self) -> None:
        """Refuse what is left: a misspelt field would otherwise be a silent default."""
        for name in self._document:
            raise self.error(name, f"is no field here; there are {', '.join(self._known)}")

    def names(self) -> tuple[str, ...]:
        """Of the fields that were not taken yet."""
        return tuple(self._document)

    def take(self, name: str, *, required: bool = False) -> Any:
        """A field as it is in the file; None where it isn't there."""
        self._known.append(name)
        value = self._document.pop(name, None)
        if value is None and required:
            raise self.error(name, "is missing")
        return value

    def section(self, name: str, *, required: bool = False) -> Fields:
        """The fields of a mapping; none where it isn't there."""
        value = self.take(name, required=required)
        return self.fields_of(name, {} if value is None else value)

    def fields_of(self, name: str, document: object) -> Fields:
        """Those of a mapping that was taken from here."""
        return Fields(self.path, document, self._error_type, f"{self._prefix}{name}.")

    def sections(self, name: str) -> list[Fields] | None:
        """The fields of each mapping of a list; None where it isn't there."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, f"must be a list of mappings, not {value!r}")
        return [self.fields_of(f"{name}[{i}]", item) for i, item in enumerate(value)]

    def text(self, name: str, default: str | None = None) -> str:
        """Text, on one line. Required where there is no default."""
        value = self.take(name, required=default is None)
        if value is None:
            assert default is not None
            return default
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, f"must be text, not {value!r}")
        return " ".join(value.split())

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"must be a list of texts, not {value!r}")
        return tuple(value)

    def mapping(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """A mapping of anything by names; an empty one where it isn't there."""
        value = self.take(name, required=required)
        if value is None:
            return {}
        if not isinstance(value, dict) or not value or not all(isinstance(k, str) for k in value):
            raise self.error(name, f"must be a mapping with names as keys, not {value!r}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {value!r}")
        return value

    def count(self, name: str, default: int) -> int:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.error(name, f"must be a whole number above 0, not {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """A number above 0."""
        value = self.take(name)
        if value is None:
            return default
        if not is_number(value) or value <= 0:
            raise self.error(name, f"must be a number above 0, not {value!r}")
        return float(value)

    def size(self, name: str, default: int | None = None) -> int:
        """Bytes. Required where there is no default."""
        value = self.take(name, required=default is None)
        if value is None:
            assert default is not None
            return default
        return self.bytes_of(name, value)

    def bytes_of(self, name: str, value: object) -> int:
        """Of a size that was taken from here."""
        try:
            return parse_size(value)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def absolute_path(self, name: str, *, required: bool = False) -> str | None:
        value = self.take(name, required=required)
        if value is not None and not (isinstance(value, str) and value.startswith("/")):
            raise self.error(name, f"must be an absolute path in the machine, not {value!r}")
        return value


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
