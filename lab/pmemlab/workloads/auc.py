"""Area under the ROC curve, exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def roc_auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float | None:
    """Return the chance that a random positive row scores above a random negative one.

    A tie counts half (the Mann-Whitney U statistic over positives × negatives). `labels` (n,) are 0
    or 1, `scores` (n,) any numbers. Returns None if there are no positives or no negatives, since
    the area is then undefined. Raises ValueError if a score is NaN, which has no rank: the model
    has diverged.
    """
    unranked = int(np.count_nonzero(np.isnan(scores)))
    if unranked:
        raise ValueError(f"scores: {unranked} of {len(scores)} are NaN; has the training diverged?")
    positive = labels > 0.5
    positives = int(np.count_nonzero(positive))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, tie_group, tie_sizes = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(tie_sizes)
    mean_rank = last_rank - (tie_sizes - 1) / 2.0
    rank_sum = float(mean_rank[tie_group][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)
