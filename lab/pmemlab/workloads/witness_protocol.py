"""The protocol by which a running program lets the lab look for its rows.

The program writes a question to the file `QUESTION` in the folder that $PMEMLAB_LOOK names, prints
the line `LOOK_REQUEST`, and waits until the file `ANSWER` is there. Meanwhile the lab runs
`python -m pmemlab.workloads.witness QUESTION ANSWER`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ANSWER", "FOLDER_VARIABLE", "LOOK_REQUEST", "QUESTION"]

FOLDER_VARIABLE: Final = "PMEMLAB_LOOK"
QUESTION: Final = "question.json"
ANSWER: Final = "answer.json"
LOOK_REQUEST: Final = "pmemlab: look for rows"
