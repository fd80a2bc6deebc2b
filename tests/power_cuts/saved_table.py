"""A table in DRAM that is saved again and again, in full and then in increments."""

from __future__ import annotations

from pathlib import Path

from trained_table import STEPS_A_CHECKPOINT, contents, make, train, uninterrupted

import embstore as es

SAVES = 5


def train_and_save(medium: Path) -> None:
    with make(es.StorageOption()) as variable:
        for save in range(1, SAVES + 1):
            for step in range(STEPS_A_CHECKPOINT * (save - 1), STEPS_A_CHECKPOINT * save):
                train(variable, step)
            es.save(medium / "saves", [variable], STEPS_A_CHECKPOINT * save)
            print(f"saved {STEPS_A_CHECKPOINT * save}", flush=True)
        for step in range(STEPS_A_CHECKPOINT * SAVES, STEPS_A_CHECKPOINT * (SAVES + 1)):
            train(variable, step)
        es.save_incremental(medium / "increment", [variable], STEPS_A_CHECKPOINT * (SAVES + 1))
        print(f"saved {STEPS_A_CHECKPOINT * (SAVES + 1)}", flush=True)


def check_saves(medium: Path, output: str) -> None:
    """Whatever was called saved can be restored, bit for bit, and nothing else is."""
    told = max((int(line.split()[-1]) for line in output.splitlines()), default=0)
    with make(es.StorageOption()) as variable:
        if told == 0 and not any((medium / "saves").glob("save-*")):
            return
        increments = [medium / "increment"] if told > STEPS_A_CHECKPOINT * SAVES else []
        step = es.restore(medium / "saves", [variable], increments)
        if step < told:
            raise AssertionError(f"step {told} was saved, and step {step} is the newest")
        if contents(variable) != uninterrupted()[step]:
            raise AssertionError(f"the rows aren't those of step {step}")
