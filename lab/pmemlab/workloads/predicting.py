"""Records a run's accesses to its tables' rows, and predicts its time on other devices."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import embstore as es
from pmemlab.workloads.placements import Placement

__all__ = ["MAX_PHASES", "Predicting"]

MAX_PHASES = 1 << 21
"""The most phases that a recording of a whole run keeps."""


class Predicting:
    """A context manager that records the entering thread's accesses, for predictions.

    Enter it a few batches before the timed ones, so that these don't start with empty caches; call
    `reset` where the timed batches begin.
    """

    def __init__(
        self,
        variables: Iterable[es.EmbeddingVariable],
        placements: Sequence[Placement],
        current_devices: Placement = (),
    ) -> None:
        """current_devices: the devices that the tiers lie on, if known."""
        # Imported late: it takes half a second on an emulated machine, and few runs are predicted.
        from pmemlab.model.prediction import caches_before

        as_here: Placement = tuple(None for _ in placements[0])
        self._placements = (as_here, *placements)
        self._current_devices = current_devices
        self._caches = caches_before([*placements, current_devices])
        self._recording = es.record_accesses(variables, caches=self._caches, max_phases=MAX_PHASES)
        self._from_ns = 0

    def reset(self) -> None:
        """Excludes everything before this call from the predictions."""
        self._from_ns = self._recording.elapsed_ns()

    def predictions(self, seconds: float, steps: int, samples: int) -> list[dict[str, Any]]:
        """Returns predictions for the run as it was, then for each placement: `devices`,
        `samples_per_s`, and `step_ms` by part.

        seconds, steps, samples: measured since `reset`. Raises LabError if a device can't do what
        the run did. REQUIRES: the training thread calls it.
        """
        from pmemlab.model.prediction import RanIn, predict_run

        phases = self._recording.phases
        phases = phases[phases["start_ns"] >= self._from_ns]
        recorded_run = RanIn(seconds, threading.get_native_id())
        predicted = []
        for placement in self._placements:
            run = predict_run(phases, self._caches, placement, recorded_run, self._current_devices)
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
