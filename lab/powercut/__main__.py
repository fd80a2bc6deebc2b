"""The entry point of `python -m powercut`, the same as `powercut`."""

from __future__ import annotations

import sys

from powercut.command import main

if __name__ == "__main__":
    sys.exit(main())
