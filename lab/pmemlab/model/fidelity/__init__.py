"""Compares predictions with published or measured figures, and shows each error.

A section is a function that returns a `Section` of `Row`s; `sections.py` lists them.
"""

from __future__ import annotations

from pmemlab.model.fidelity.rows import Row, Section

__all__ = ["Row", "Section"]
