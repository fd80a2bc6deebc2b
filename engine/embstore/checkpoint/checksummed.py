"""JSON texts that end with a checksum of themselves."""

from __future__ import annotations

import json
from typing import Any

from embstore._core import crc32c

__all__ = ["checksummed", "has_valid_checksum"]

# The end of a text with a checksum, and without. The checksum is that of the text without one.
_END_WITH_CHECKSUM = b',\n "checksum": "%08x"\n}\n'
_END_WITHOUT_CHECKSUM = b"\n}\n"


def checksummed(fields: dict[str, Any]) -> bytes:
    """Returns the text of an object with `fields`, which must not be empty, and its checksum."""
    text = json.dumps(fields, indent=1, allow_nan=False) + "\n"
    return _append_checksum(text.encode("ascii"))


def has_valid_checksum(text: bytes) -> bool:
    """Returns whether a text is, to the byte, as `checksummed` wrote it."""
    return text == _append_checksum(text[: -len(_END_WITH_CHECKSUM % 0)] + _END_WITHOUT_CHECKSUM)


def _append_checksum(text: bytes) -> bytes:
    return text.removesuffix(_END_WITHOUT_CHECKSUM) + _END_WITH_CHECKSUM % crc32c(text)
