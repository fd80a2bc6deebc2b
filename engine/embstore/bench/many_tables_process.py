"""What the suite of many tables runs in a process of its own.

    python -m embstore.bench.many_tables_process OPTIONS

OPTIONS and what is printed are JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from embstore.bench.many_tables_suite import ManyTablesOptions, measure


def main() -> None:
    options = ManyTablesOptions(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(measure(options))))


if __name__ == "__main__":
    main()
