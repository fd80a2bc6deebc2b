"""Devices that pace tiers, and recordings of a program's accesses to its tiers."""

from __future__ import annotations

from embstore.devices.device import Access, Device, MemoryCache

__all__ = ["Access", "Device", "MemoryCache"]
