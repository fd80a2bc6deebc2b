"""`python -m benchmarks.checkpoint_io`."""

import signal
import sys

from benchmarks.checkpoint_io.command import main

if __name__ == "__main__":
    # Handle SIGTERM like a keyboard interrupt: remove the files on the media first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
