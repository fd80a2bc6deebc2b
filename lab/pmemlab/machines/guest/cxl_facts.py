"""Lists CXL memory devices, and the regions made of them, with the program cxl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pmemlab.machines.guest.fact_reading import read_kernel_text, run_json_program, try_read

__all__ = ["read_cxl_memdevs", "read_cxl_regions"]

_DEVICES = Path("/sys/bus/cxl/devices")


def read_cxl_memdevs() -> list[dict[str, object]]:
    """Returns CXL memory devices by name. If the kernel has none, no program is called."""
    if not any(_DEVICES.glob("mem*")):
        return []
    listed: list[dict[str, Any]] = run_json_program(["cxl", "list", "--memdevs"])
    return [
        {
            "name": memdev["memdev"],
            "ram_bytes": memdev.get("ram_size", 0),
            "pmem_bytes": memdev.get("pmem_size", 0),
        }
        for memdev in sorted(listed, key=lambda memdev: str(memdev["memdev"]))
    ]


def read_cxl_regions() -> list[dict[str, object]]:
    """Returns CXL regions by name; empty if there are none."""
    if not any(_DEVICES.glob("region*")):
        return []
    listed: list[dict[str, Any]] = run_json_program(["cxl", "list", "--regions", "--targets"])
    return [_region(region) for region in sorted(listed, key=lambda one: str(one["region"]))]


def _region(region: dict[str, Any]) -> dict[str, object]:
    folder = _DEVICES / region["region"]
    return {
        "name": region["region"],
        "mode": try_read(lambda: read_kernel_text(folder / "mode")),
        "bytes": region["size"],
        "decode_state": region["decode_state"],
        "memdevs": sorted(target["memdev"] for target in region.get("mappings", [])),
    }
