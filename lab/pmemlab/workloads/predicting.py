"""Records what a run does with its tables' rows, and says how long it takes on other devices."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import embstore as es
from pmemlab.workloads.placements import Placement

__all__ = ["MOST_PHASES", "Predicting"]

MOST_PHASES = 1 << 21
"""Of a recording of a whole run."""


class Predicting:
    """A context manager: what the thread that enters it does with the variables is predicted.

    Entered a few batches before those that count, whose caches would else be empty; `reset` says
    where these begin.
    """

    def __init__(
        self,
        variables: Iterable[es.EmbeddingVariable],
        placements: Sequence[Placement],
        here: Placement = (),
    ) -> None:
        """here: what the tiers are on, where that is known."""
        # Only now: it costs an emulated machine a half of a second, and few runs are predicted.
        from pmemlab.model.prediction import caches_before

        as_here: Placement = tuple(None for _ in placements[0])
        self._placements = (as_here, *placements)
        self._here = here
        self._caches = caches_before([*placements, here])
        self._recording = es.record_accesses(
            variables, caches=self._caches, most_phases=MOST_PHASES
        )
        self._from_ns = 0

    def reset(self) -> None:
        """What came before isn't counted."""
        self._from_ns = self._recording.elapsed_ns()

    def predictions(self, seconds: float, steps: int, samples: int) -> list[dict[str, Any]]:
        """Of the run as it was, and of each placement: `devices`, `samples_per_s`, and `step_ms` by
        part, for so many seconds, steps and samples since `reset`.

        REQUIRES: it's called by the thread that trained. Raises LabError where a device can't do
        what the run did.
        """
        from pmemlab.model.prediction import RanIn, predict_run

        phases = self._recording.phases
        phases = phases[phases["start_ns"] >= self._from_ns]
        ran = RanIn(seconds, threading.get_native_id())
        predicted = []
        for placement in self._placements:
            run = predict_run(phases, self._caches, placement, ran, self._here)
            parts = {f"tier{i}": of_tier for i, of_tier in enumerate(run.tier_seconds)}
            parts["compute"] = run.rest_seconds
            if run.behind_seconds:
                parts["moves"] = run.behind_seconds
            predicted.append(
                {
                    "devices": list(run.devices),
                    "samples_per_s": samples / run.seconds,
                    "step_ms": {name: of_part * 1e3 / steps for name, of_part in parts.items()},
                }
            )
        return predicted

    def __enter__(self) -> Predicting:
        self._recording.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._recording.__exit__(*error)
