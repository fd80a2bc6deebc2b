"""Reads the available machines, their memories and disks, and their prices from a YAML file."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pmemlab.errors import PriceFileError
from pmemlab.schema import (
    Count,
    Document,
    FieldError,
    File,
    From,
    Must,
    OneOrMore,
    Parsed,
    Positive,
    Text,
    Texts,
    check_bytes,
)

__all__ = ["DEFAULT_PRICES", "Holding", "MachineShape", "PriceSource", "Prices", "load_prices"]

DEFAULT_PRICES = Path(__file__).with_name("prices.yaml")

_MAX_SHARES = 64  # of a device: a plan computes threads * shares times for each


def _day(value: object) -> str:
    text = str(value)
    try:
        is_day = datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_day = False
    if not is_day:
        raise FieldError(f"must be a day as 2026-02-09, not {value!r}")
    return text


@dataclass(frozen=True)
class Holding(Document):
    """A kind of memory or disk that a machine has.

    devices: names of the device files that model it. units: the number that share the load, for
        example disks, or sockets whose memory a machine has; from 1/64 to below 1 for a share of a
        unit that others use too. capacity_gib, capacity_gb: capacity of all units together, in one
        of the two units.
    """

    devices: Annotated[tuple[str, ...], Must("a list of one device or more", len)]
    capacity_gib: Positive | None = None
    capacity_gb: Positive | None = None
    units: Annotated[
        float,
        Must(f"a number of at least 1/{_MAX_SHARES}", lambda value: value >= 1 / _MAX_SHARES),
    ] = 1.0

    def check(self) -> None:
        if (self.capacity_gib is None) == (self.capacity_gb is None):
            raise FieldError("give either it or capacity_gb", "capacity_gib")
        for field, unit in (("capacity_gib", 1 << 30), ("capacity_gb", 10**9)):
            value = getattr(self, field)
            if value is not None:
                check_bytes(value * unit, field)

    @property
    def capacity_bytes(self) -> int:
        return int((self.capacity_gib or 0) * (1 << 30) + (self.capacity_gb or 0) * 10**9)


@dataclass(frozen=True)
class PriceSource(Document):
    """The source of a price. date: the day on which the price was valid (ISO)."""

    title: Text
    url: Text
    date: Annotated[str, Parsed(_day)]


@dataclass(frozen=True)
class MachineShape(Document):
    """A machine to rent or own. memory_mode: its memory in that mode, if it has the mode. sold_in:
    how many are rented together.
    """

    name: Text
    cpu_threads: Count
    usd_per_hour: Positive
    holds: OneOrMore[Holding]
    source: PriceSource
    notes: Texts = ()
    memory_mode: Holding | None = None
    sold_in: Count = 1

    def check(self) -> None:
        held: set[str] = set()
        for index, holding in enumerate(self.holds):
            for device in holding.devices:
                if device in held:
                    raise FieldError(f"{device} is held twice", f"holds[{index}].devices")
            held.update(holding.devices)

    def rented_count(self, machines: int) -> int:
        """Returns how many must be rented if `machines` are needed."""
        return -(-machines // self.sold_in) * self.sold_in

    def holding_of(self, device: str) -> Holding | None:
        return next((holding for holding in self.holds if device in holding.devices), None)


def _shapes(machines: Collection[MachineShape]) -> tuple[MachineShape, ...]:
    """Returns the machines; a machine with memory mode is followed by a copy in that mode."""
    shapes: dict[str, MachineShape] = {}
    for index, machine in enumerate(machines):
        if machine.name in shapes:
            raise FieldError(f"there is a machine {machine.name} already", f"[{index}].name")
        shapes[machine.name] = machine
        if machine.memory_mode is not None:
            name = f"{machine.name}, memory mode"
            shapes[name] = replace(machine, name=name, holds=(machine.memory_mode,))
    return tuple(shapes.values())


@dataclass(frozen=True)
class Prices(Document, context=("path",)):
    path: Path
    hours_a_month: Positive
    machines: Annotated[tuple[MachineShape, ...], From(OneOrMore[MachineShape], _shapes)]

    def machine(self, name: str) -> MachineShape:
        """Returns a machine by name. Raises PriceFileError if there is none of that name."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        known = ", ".join(machine.name for machine in self.machines)
        raise PriceFileError(f"{self.path}: machines: there is no {name}; there are {known}")

    def machines_with(self, devices: Collection[str]) -> list[MachineShape]:
        """Returns the machines that hold all of these devices."""
        return [machine for machine in self.machines if all(map(machine.holding_of, devices))]

    def cheapest_with(self, devices: Collection[str]) -> MachineShape | None:
        """Returns the cheapest of these machines; None if there is none."""
        fit = self.machines_with(devices)
        return min(fit, key=lambda machine: machine.usd_per_hour, default=None)

    def restricted_to(self, names: Collection[str] | None) -> Prices:
        """Returns the prices of these machines alone; None: all."""
        if names is None:
            return self
        machines = tuple(self.machine(name) for name in dict.fromkeys(names))
        return Prices(self.path, self.hours_a_month, machines)


def load_prices(path: Path | None = None) -> Prices:
    """Reads a price file. path: None for the lab's own. Raises PriceFileError, which names file,
    line and field.
    """
    return File.from_yaml(path or DEFAULT_PRICES, PriceFileError).read(Prices)
