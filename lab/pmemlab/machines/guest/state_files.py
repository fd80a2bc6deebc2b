"""Files by which `pmemlab machine serve` says, in its state folder, how its machine is."""

from __future__ import annotations

from typing import Final

__all__ = ["POWER_CUT_FILE", "PROOF_FILE"]

PROOF_FILE: Final = "proof.json"
"""The proof, once it has passed."""

POWER_CUT_FILE: Final = "power-cut"
"""Is there in the place of the proof while the machine is without power."""
