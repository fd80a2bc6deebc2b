import sys

from benchmarks.criteo_deepctr.command import main

sys.exit(main())
