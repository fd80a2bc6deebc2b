"""JSON that ends with a checksum of its text."""

from __future__ import annotations

import json
from typing import Any

from embstore._core import crc32c

__all__ = ["checksummed", "is_as_written"]

# The end of a text; and its end without the checksum, which is of the text so ended.
_END = b',\n "checksum": "%08x"\n}\n'
_END_WITHOUT = b"\n}\n"


def checksummed(fields: dict[str, Any]) -> bytes:
    """The text of an object with at least one field."""
    text = json.dumps(fields, indent=1, allow_nan=False) + "\n"
    return _with_checksum(text.encode("ascii"))


def is_as_written(text: bytes) -> bool:
    """Whether it is, to the byte, one that `checksummed` gave."""
    return text == _with_checksum(text[: -len(_END % 0)] + _END_WITHOUT)


def _with_checksum(text: bytes) -> bytes:
    return text.removesuffix(_END_WITHOUT) + _END % crc32c(text)
