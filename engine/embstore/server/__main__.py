"""python -m embstore.server [status]: see `embstore.server`."""

from __future__ import annotations

import sys

from embstore.errors import EmbStoreError
from embstore.server.serving import serve
from embstore.server.status_command import tell_status


def main(arguments: list[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] == ["status"]:
            tell_status(given[1:])
        else:
            serve(given)
    except EmbStoreError as error:
        sys.exit(f"embstore.server: {error}")


if __name__ == "__main__":
    main()
