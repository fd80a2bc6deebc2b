"""Machines that can be had, what they hold, and what they cost: read from a YAML file."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pmemlab.errors import PriceFileError
from pmemlab.yaml_fields import Fields, is_number

__all__ = ["DEFAULT_PRICES", "Holding", "MachineShape", "Prices", "load_prices"]

DEFAULT_PRICES = Path(__file__).with_name("prices.yaml")


@dataclass(frozen=True)
class Holding:
    """A kind of memory or disk that a machine has.

    devices: names of the devices that stand for it. units: of them side by side, as disks are that
        share the load and sockets whose memory a machine has; less than 1 for the share of one
        that others use too. capacity_bytes: of all units together.
    """

    devices: tuple[str, ...]
    capacity_bytes: int
    units: float


@dataclass(frozen=True)
class MachineShape:
    """A machine to rent or own. date: when the price was that (ISO)."""

    name: str
    cpu_threads: int
    usd_per_hour: float
    holds: tuple[Holding, ...]
    source: str
    url: str
    date: str
    notes: tuple[str, ...]

    def holding_of(self, device: str) -> Holding | None:
        return next((holding for holding in self.holds if device in holding.devices), None)


@dataclass(frozen=True)
class Prices:
    path: Path
    hours_a_month: float
    machines: tuple[MachineShape, ...]

    def machine(self, name: str) -> MachineShape:
        """Raises PriceFileError where there's none of that name."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        known = ", ".join(machine.name for machine in self.machines)
        raise PriceFileError(f"{self.path}: machines: there is no {name}; there are {known}")

    def of(self, names: Collection[str] | None) -> Prices:
        """With these machines alone; None: all."""
        if names is None:
            return self
        machines = tuple(self.machine(name) for name in dict.fromkeys(names))
        return Prices(self.path, self.hours_a_month, machines)


def load_prices(path: Path | None = None) -> Prices:
    """path: None for the lab's own. Raises PriceFileError, which names file and field."""
    fields = Fields.of_file(path or DEFAULT_PRICES, PriceFileError)
    hours = _positive(fields, "hours_a_month")
    sections = fields.sections("machines")
    if not sections:
        raise fields.error("machines", "is missing: a list of one machine or more")
    machines: list[MachineShape] = []
    for section in sections:
        for machine in _machines_of(section):
            if any(machine.name == other.name for other in machines):
                raise section.error("name", f"there is a machine {machine.name} already")
            machines.append(machine)
    fields.finish()
    return Prices(fields.path, hours, tuple(machines))


def _machines_of(fields: Fields) -> list[MachineShape]:
    """The machine, and the same in memory mode where it has that."""
    name = fields.text("name")
    cpu_threads = _whole(fields, "cpu_threads")
    usd_per_hour = _positive(fields, "usd_per_hour")
    source = fields.section("source", required=True)
    title, url, date = source.text("title"), source.text("url"), _date(source)
    source.finish()
    holds = [_holding(each) for each in fields.sections("holds") or []]
    if not holds:
        raise fields.error("holds", "is missing: a list of what memory and disks the machine has")
    memory_mode = fields.take("memory_mode")
    notes = fields.texts("notes")
    shapes = [MachineShape(name, cpu_threads, usd_per_hour, tuple(holds), title, url, date, notes)]
    if memory_mode is not None:
        cached = _holding(fields.fields_of("memory_mode", memory_mode))
        shapes.append(
            MachineShape(
                f"{name}, memory mode",
                cpu_threads,
                usd_per_hour,
                (cached,),
                title,
                url,
                date,
                notes,
            )
        )
    fields.finish()
    for index, holding in enumerate(holds):
        earlier = {device for other in holds[:index] for device in other.devices}
        for device in holding.devices:
            if device in earlier:
                raise fields.error(f"holds[{index}].devices", f"{device} is held twice")
    return shapes


def _holding(fields: Fields) -> Holding:
    devices = fields.texts("devices")
    if not devices:
        raise fields.error("devices", "is missing: a list of names of devices that stand for it")
    gib, gb = fields.take("capacity_gib"), fields.take("capacity_gb")
    if (gib is None) == (gb is None):
        raise fields.error("capacity_gib", "give either it or capacity_gb")
    field, value, unit = (
        ("capacity_gb", gb, 10**9) if gib is None else ("capacity_gib", gib, 1 << 30)
    )
    if not is_number(value) or value <= 0:
        raise fields.error(field, f"must be a number above 0, not {value!r}")
    units = fields.take("units")
    if units is not None and (not is_number(units) or units <= 0):
        raise fields.error("units", f"must be a number above 0, not {units!r}")
    fields.finish()
    return Holding(devices, int(value * unit), 1.0 if units is None else float(units))


def _positive(fields: Fields, name: str) -> float:
    value = fields.take(name, required=True)
    if not is_number(value) or value <= 0:
        raise fields.error(name, f"must be a number above 0, not {value!r}")
    return float(value)


def _whole(fields: Fields, name: str) -> int:
    value = fields.take(name, required=True)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise fields.error(name, f"must be a whole number above 0, not {value!r}")
    return value


def _date(fields: Fields) -> str:
    value = fields.take("date", required=True)
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise fields.error("date", f"must be a day as 2026-02-09, not {value!r}")
    return value.isoformat()
