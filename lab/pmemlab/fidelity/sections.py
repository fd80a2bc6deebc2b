"""Which sections the page has, in order."""

from __future__ import annotations

from collections.abc import Callable

from pmemlab.fidelity.rows import Section

__all__ = ["OnStep", "make_sections"]

OnStep = Callable[[str], object]


def make_sections(on_step: OnStep = lambda _: None) -> tuple[Section, ...]:
    """All of them, which takes a minute. on_step: told what is done next. Raises LabError."""
    from pmemlab.fidelity.bandwidth_section import bandwidth_section
    from pmemlab.fidelity.openembedding import openembedding_sections

    on_step("bandwidth: foretelling published figures")
    return (bandwidth_section(), *openembedding_sections(on_step))
