"""Devices that tiers are paced as, and recordings of what a program asks of its tiers."""

from __future__ import annotations

from embstore.devices.device import Access, Device, MemoryCache

__all__ = ["Access", "Device", "MemoryCache"]
