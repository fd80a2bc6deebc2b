"""`python -m pmemlab`, the same as `pmemlab`."""

import sys

from pmemlab.cli import main

sys.exit(main())
