"""Predictions beside what was published or measured, with the error of each.

A section is a function that returns a `Section` of `Row`s; `sections.py` lists them.
"""

from __future__ import annotations

from pmemlab.model.fidelity.rows import Row, Section

__all__ = ["Row", "Section"]
