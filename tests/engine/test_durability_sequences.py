"""Any sequence of training, checkpoints, removals, cuts and restores, beside a record of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from durable_table import batch, batch_for, contents, make_durable_table
from engine_storage import IN_MEMORY
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import embstore as es
from embstore.checkpoint.persist.writer import finish_persists
from embstore.errors import StoreFullError
from embstore.options import TIER_KINDS, TierKind


class DurableTable(RuleBasedStateMachine):
    """A restore brings a table back as it was at that checkpoint, whatever came after it."""

    storage_type = es.StorageType.DRAM_PMEM

    @property
    def is_above_ssd(self) -> bool:
        return TIER_KINDS[self.storage_type][-1] is TierKind.SSDHASH

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=IN_MEMORY, prefix="embstore-test-"))
        self.step = 0
        self.recorded: dict[int, dict[str, Any]] = {}  # contents, by checkpoint
        self.keep = 1

    @initialize(keep=st.integers(1, 3), cache_rows=st.sampled_from([8, 40, 400]))
    def begin(self, keep: int, cache_rows: int) -> None:
        self.keep = keep
        self.cache_rows = cache_rows
        self.variable = self.opened()

    def opened(self) -> es.EmbeddingVariable:
        return make_durable_table(
            self.place, storage_type=self.storage_type, cache_rows=self.cache_rows
        )

    @rule(steps=st.integers(1, 12))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            ids, grads = batch_for(self.variable, self.step)
            self.variable.lookup(ids, train=True)
            before = contents(self.variable) if self.is_above_ssd else None
            try:
                self.variable.apply_gradients(ids, grads)
            except StoreFullError:  # checkpoints keep too many slots of such a small pool
                assert contents(self.variable) == before
                return
            self.step += 1

    @rule(seed=st.integers(0, 1000))
    def serve(self, seed: int) -> None:
        self.variable.lookup(batch(seed)[0])

    @rule()
    def drain(self) -> None:
        self.variable.drain()

    @rule(window=st.integers(0, 2))
    def persist(self, window: int) -> None:
        now = contents(self.variable)
        number = es.persist([self.variable], self.place / "list", window, keep=self.keep)
        self.recorded[number] = now

    @rule(first=st.integers(0, 300), count=st.integers(1, 40))
    def remove(self, first: int, count: int) -> None:
        self.variable.remove(np.arange(first, first + count))

    @rule()
    def save_and_restore(self) -> None:
        before = contents(self.variable)
        es.save(self.place / "save", [self.variable], 0)
        self.train(2)
        es.restore(self.place / "save", [self.variable])
        assert contents(self.variable) == before

    def go_back(self, chosen: int | None) -> None:
        """Restores the chosen checkpoint, or the newest if None. Does nothing if there is none."""
        finish_persists(self.variable)
        listed = es.persisted(self.place / "list") if self.recorded else []
        assert listed == sorted(self.recorded)[-self.keep :]
        if not listed:
            return
        es.restore_persisted([self.variable], self.place / "list", chosen)
        number = chosen if chosen is not None else listed[-1]
        assert contents(self.variable) == self.recorded[number]
        self.recorded = {
            n: table for n, table in self.recorded.items() if n in listed and n <= number
        }

    @precondition(lambda self: self.recorded)
    @rule(data=st.data(), reopens=st.booleans())
    def cut(self, data: st.DataObject, reopens: bool) -> None:
        if reopens:
            self.variable.close()
            self.variable = self.opened()
        else:
            finish_persists(self.variable)
        self.go_back(data.draw(st.sampled_from([None, *es.persisted(self.place / "list")])))

    def teardown(self) -> None:
        if hasattr(self, "variable"):
            self.variable.close()
        shutil.rmtree(self.place)


class DurableTableAboveSsdHash(DurableTable):
    storage_type = es.StorageType.DRAM_PMEM_SSDHASH


class DurableTableBelowHbm(DurableTable):
    storage_type = es.StorageType.HBM_DRAM_PMEM


class DurableTableBelowHbmAboveSsdHash(DurableTable):
    storage_type = es.StorageType.HBM_DRAM_PMEM_SSDHASH


def sequences(table: type[DurableTable], examples: int) -> type:
    case: type = table.TestCase
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestDurableTable = sequences(DurableTable, 80)
TestDurableTableAboveSsdHash = sequences(DurableTableAboveSsdHash, 40)
TestDurableTableBelowHbm = sequences(DurableTableBelowHbm, 40)
TestDurableTableBelowHbmAboveSsdHash = sequences(DurableTableBelowHbmAboveSsdHash, 40)
