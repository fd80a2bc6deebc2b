"""PyTorch that gives the same bits again."""

from __future__ import annotations

import torch

__all__ = ["make_reproducible"]


def make_reproducible(seed: int) -> None:
    """Seed PyTorch, and have it compute in one thread, by deterministic algorithms only."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    # As use_deterministic_algorithms(True), which imports PyTorch's compiler besides.
    torch.set_deterministic_debug_mode("error")
