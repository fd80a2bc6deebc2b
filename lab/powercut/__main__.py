"""`python -m powercut`, the same as `powercut`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    from powercut.command import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
