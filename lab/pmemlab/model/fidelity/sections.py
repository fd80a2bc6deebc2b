"""The list of the page's sections, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pmemlab.model.fidelity.rows import Section

__all__ = ["OnStep", "make_sections"]

OnStep = Callable[[str], object]


def make_sections(
    on_step: OnStep = lambda _: None, measured: Path | None = None
) -> tuple[Section, ...]:
    """Makes all sections, which takes a minute. on_step: called with a description of each step.
    measured: file of real runs' results; by default the file beside the page. Raises LabError.
    """
    from pmemlab.model.fidelity.bandwidth import bandwidth_section
    from pmemlab.model.fidelity.gpus import gpu_section
    from pmemlab.model.fidelity.measured import MEASURED_FILE, measured_sections
    from pmemlab.model.fidelity.openembedding import openembedding_sections

    of_runs = measured_sections(measured or MEASURED_FILE)
    on_step("bandwidth: predicting published figures")
    return (bandwidth_section(), *of_runs, gpu_section(), *openembedding_sections(on_step))
