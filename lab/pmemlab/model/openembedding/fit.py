"""A step's time on DRAM and on PMem-Hash, from four published epoch times and nothing else.

With k GPUs an epoch has 1/k of the steps, so k x T(k) is a step's time, in some unit. The published
times of DRAM-PS give 4.0, 4.8 and 5.6 on 4, 8 and 16 GPUs: the same increase for each doubling. In

    step(k) = a + b log2(k) + d k

the three times determine each coefficient, and d, the servers' work for each GPU's rows, is too
small to show in figures of two digits. b is the growing cost of synchronous training: all-reduces
and waits for the slowest GPU. So DRAM-PS isn't bound by its servers, and their number of nodes
makes no difference to the model.

On PMem-Hash all rows are in persistent memory, and each step waits for them, by the same time for
each GPU:

    step_hash(k) = step(k) + h k

where h follows from the one time of PMem-Hash that is fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pmemlab.errors import LabError

__all__ = ["FitInputs", "StepFit", "fit_step"]

_GPUS = (4, 8, 16)


@dataclass(frozen=True)
class FitInputs:
    """The epoch times that the model is fitted to, all relative to DRAM-PS on 4 GPUs."""

    dram_4: float
    dram_8: float
    dram_16: float
    hash_4: float


@dataclass(frozen=True)
class StepFit:
    """A step's time on k GPUs, in steps of DRAM-PS on 4 GPUs: `base` + `doubling` log2(k) +
    `dram_gpu` k, plus `hash_gpu` k on PMem-Hash.
    """

    base: float
    doubling: float
    dram_gpu: float
    hash_gpu: float

    def dram_step(self, gpus: int) -> float:
        """Returns the time of a step on k GPUs, relative to a step on 4."""
        return self.base + self.doubling * math.log2(gpus) + self.dram_gpu * gpus


def fit_step(inputs: FitInputs) -> StepFit:
    """Fits the coefficients. Raises LabError for impossible times: a step gets shorter with more
    GPUs, or PMem-Hash is faster than DRAM-PS.
    """
    times = (inputs.dram_4, inputs.dram_8, inputs.dram_16)
    steps = [
        gpus * time / (_GPUS[0] * inputs.dram_4) for gpus, time in zip(_GPUS, times, strict=True)
    ]
    if not (0 < steps[0] <= steps[1] <= steps[2]):
        raise LabError(
            f"times of DRAM-PS on {_GPUS} GPUs: {times}: a step gets shorter with more GPUs"
        )
    if inputs.hash_4 < inputs.dram_4:
        raise LabError(
            f"time of PMem-Hash on 4 GPUs: {inputs.hash_4}: faster than DRAM-PS, {inputs.dram_4}"
        )
    terms = np.array([[1.0, math.log2(gpus), gpus] for gpus in _GPUS])
    base, doubling, dram_gpu = np.linalg.solve(terms, steps)
    return StepFit(
        base=float(base),
        doubling=float(doubling),
        dram_gpu=float(dram_gpu),
        hash_gpu=(inputs.hash_4 / inputs.dram_4 - 1) / _GPUS[0],
    )
