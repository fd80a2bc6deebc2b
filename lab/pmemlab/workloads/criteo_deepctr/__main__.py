import sys

from pmemlab.workloads.criteo_deepctr.command import main

sys.exit(main())
