"""`python -m pmemlab.workloads.checkpoint_io`."""

import sys

from pmemlab.workloads.checkpoint_io.command import main

if __name__ == "__main__":
    sys.exit(main())
