"""A step's time on DRAM and on PMem-Hash, from four published epoch times and nothing else.

An epoch has 1/k of the steps where k GPUs take part, so k x T(k) is a step's time, in some unit.
The published times of DRAM-PS give 4.0, 4.8 and 5.6 on 4, 8 and 16 GPUs: as much more for each
doubling. Of

    step(k) = a + b log2(k) + d k

the three times then tell each coefficient, and d, the servers' work for each GPU's rows, comes out
as nothing that figures of two digits could show. b is what synchronous training costs as it grows:
all-reduces and waits for the slowest. So DRAM-PS isn't bound by its servers, and on how many nodes
they are makes no difference to the model.

On PMem-Hash all rows are in persistent memory, and each step waits for them: as much longer for
each GPU,

    step_hash(k) = step(k) + h k

where h follows from its one time.
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
    """Epoch times, of that of DRAM-PS on 4 GPUs: all that is fitted."""

    dram_4: float
    dram_8: float
    dram_16: float
    hash_4: float


@dataclass(frozen=True)
class StepFit:
    """Coefficients in steps of DRAM-PS on 4 GPUs: `base` + `doubling` log2(k) + `dram_gpu` k, and
    `hash_gpu` k more on PMem-Hash.
    """

    base: float
    doubling: float
    dram_gpu: float
    hash_gpu: float

    def dram_step(self, gpus: int) -> float:
        """Returns the time of a step on k GPUs, relative to a step on 4."""
        return self.base + self.doubling * math.log2(gpus) + self.dram_gpu * gpus


def fit_step(inputs: FitInputs) -> StepFit:
    """Raise LabError where no step could take these times: it must not get shorter with more GPUs,
    nor PMem-Hash be faster than DRAM-PS.
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
