"""Writes sketch_of_other_shards.tar.xz: a save of versions whose shards were divided by a hash.

    git worktree add /tmp/before 59fad260, and build its engine
    PYTHONPATH=/tmp/before/engine python tests/engine/data/make_sketch_of_other_shards.py

Later versions can't write it. test_older_placement.py describes its contents.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from make_placed_by_modulo import DIM, pack, rows_of, train, waiting_of

import embstore as es

ARCHIVE = Path(__file__).with_name("sketch_of_other_shards.tar.xz")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sketch = es.CBFFilter(3, 64, 0.01, np.uint8)
        with es.get_embedding_variable(
            "var",
            DIM,
            initializer=es.initializers.Constant(0.5),  # compresses well
            optimizer=es.optimizers.Adagrad(0.1),
            ev_option=es.EmbeddingVariableOption(filter_option=sketch),
            partition_num=3,
        ) as var:
            train(var, 3, global_step=1)
            train(var, 4, global_step=2, share=0.5)
            es.save(root / "sketch-3", [var], 2)
            wanted = {"sketch-3": {**rows_of(var), "frequencies": waiting_of(var)}}
        (root / "sketch-3.json").write_text(json.dumps(wanted))
        header = next((root / "sketch-3").glob("save-*/*.rows*")).read_bytes()[:12]
        if header[8:] != b"\3\0\0\0":
            sys.exit("this engine isn't of before: its row files have another version than 3")
        pack(ARCHIVE, root)


if __name__ == "__main__":
    main()
