"""Predicts how long a run would have taken with its tiers on other devices.

caches = caches_before([devices])
with es.record_accesses(variable, caches=caches) as recorded:
    train(variable)
predict_run(recorded.phases, caches, devices, RanIn(seconds, thread))
"""

from __future__ import annotations

from pmemlab.model.prediction.predicted_run import PredictedRun, RanIn, caches_before, predict_run

__all__ = ["PredictedRun", "RanIn", "caches_before", "predict_run"]
