"""Makes PyTorch's results reproducible to the bit."""

from __future__ import annotations

import torch

__all__ = ["make_reproducible"]


def make_reproducible(seed: int) -> None:
    """Seed PyTorch, and restrict it to one thread and deterministic algorithms."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    # Like use_deterministic_algorithms(True), which would also import PyTorch's compiler.
    torch.set_deterministic_debug_mode("error")
