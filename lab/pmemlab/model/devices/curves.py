"""Published or measured curves, and what lies between their points.

Between points everything is a straight line in logarithms, but for what other sizes show of the
threads between two points of a size. Beyond them nothing grows:

- fewer threads than were measured: each gets what it got among the fewest, which is the least that
  it can get, for fewer contend;
- more threads: all together get what the most got;
- larger accesses: the bandwidth of the largest;
- smaller ones: the time of the smallest, of which a part was asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["BandwidthCurve", "BandwidthRow", "LoadedLatencyCurve", "LoadedLatencyRow"]


@dataclass(frozen=True)
class BandwidthRow:
    """Bandwidth of all threads together, by their number, at one access size.

    threads: ascending; of a block device, requests in flight. mb_per_s: 10^6 bytes, as many.
    """

    size_bytes: int
    threads: tuple[int, ...]
    mb_per_s: tuple[float, ...]

    def covers(self, threads: float) -> bool:
        return self.threads[0] <= threads <= self.threads[-1]

    def gap(self, threads: float) -> tuple[int, int] | None:
        """The numbers of threads that were measured, on either side of one that wasn't."""
        after = bisect_left(self.threads, threads)
        if not 0 < after < len(self.threads) or self.threads[after] == threads:
            return None
        return self.threads[after - 1], self.threads[after]

    def is_finer(self, gap: tuple[int, int], threads: float) -> bool:
        """Whether both ends of another row's gap were measured here, and something between."""
        if not set(gap) <= set(self.threads):
            return False
        return self.gap(threads) != gap

    def at(self, threads: float) -> float:
        if threads <= self.threads[0]:
            return self.mb_per_s[0] * threads / self.threads[0]
        if threads >= self.threads[-1]:
            return self.mb_per_s[-1]
        return interpolate(threads, self.threads, self.mb_per_s)


class BandwidthCurve:
    """Bandwidth by access size and threads; not every size needs the same threads."""

    def __init__(self, rows: Iterable[BandwidthRow]) -> None:
        """rows: by ascending size; at least one."""
        self.rows = tuple(rows)

    def covers(self, size_bytes: int, threads: float) -> bool:
        """Whether that lies between points, so that nothing has to be assumed."""
        sizes = [row.size_bytes for row in self.rows if row.covers(threads)]
        return bool(sizes) and sizes[0] <= size_bytes <= sizes[-1]

    def at(self, size_bytes: int, threads: float) -> float:
        """MB/s of all threads together."""
        if size_bytes < self.rows[0].size_bytes:
            whole = self.rows[0].size_bytes
            return self.at(whole, threads) * size_bytes / whole
        # A size that was measured with few threads says nothing of many, and the other way round.
        rows = [row for row in self.rows if row.covers(threads)]
        if not rows or size_bytes < rows[0].size_bytes:
            rows = list(self.rows)
        sizes = [row.size_bytes for row in rows]
        above = min(bisect_left(sizes, size_bytes), len(rows) - 1)
        between = rows[max(above - 1, 0) : above + 1]
        values = [row.at(threads) * self._bend(row, threads) for row in between]
        return interpolate(size_bytes, [row.size_bytes for row in between], values)

    def _bend(self, row: BandwidthRow, threads: float) -> float:
        """How far other sizes lie off the straight line that this one has between two numbers of
        threads: where bandwidth stops to grow, say. Told by the nearest sizes that have more there.
        """
        gap = row.gap(threads)
        if gap is None:
            return 1.0
        finer = [other for other in self.rows if other.is_finer(gap, threads)]
        sizes = [other.size_bytes for other in finer]
        bends = [
            other.at(threads) / interpolate(threads, gap, [other.at(end) for end in gap])
            for other in finer
        ]
        return interpolate(row.size_bytes, sizes, bends) if finer else 1.0

    def points(self) -> Iterator[tuple[int, int, float]]:
        """Yields size, threads and MB/s of each figure."""
        for row in self.rows:
            for threads, mb_per_s in zip(row.threads, row.mb_per_s, strict=True):
                yield row.size_bytes, threads, mb_per_s

    def without(
        self, size_bytes: int | None = None, threads: int | None = None
    ) -> BandwidthCurve | None:
        """The curve without the figures of a size and a number of threads (None: of any of them).
        None where nothing is left.
        """
        kept: dict[int, list[tuple[int, float]]] = {}
        for size, count, mb_per_s in self.points():
            if size_bytes not in (None, size) or threads not in (None, count):
                kept.setdefault(size, []).append((count, mb_per_s))
        rows = [
            BandwidthRow(size, *map(tuple, zip(*figures, strict=True)))
            for size, figures in kept.items()
        ]
        return BandwidthCurve(rows) if rows else None


@dataclass(frozen=True)
class LoadedLatencyRow:
    """Latency of a load while some threads move that much.

    mb_per_s: ascending; latency_ns: of a load beside that traffic, never falling.
    """

    threads: int
    mb_per_s: tuple[float, ...]
    latency_ns: tuple[float, ...]

    def at(self, mb_per_s: float) -> float:
        return interpolate(mb_per_s, self.mb_per_s, self.latency_ns)


class LoadedLatencyCurve:
    """Latency by bandwidth, for some numbers of threads."""

    def __init__(self, rows: Iterable[LoadedLatencyRow]) -> None:
        """rows: by ascending number of threads; at least one."""
        self.rows = tuple(rows)

    def most_mb_per_s(self, threads: float) -> float:
        """What so many threads of the measurement got at most."""
        most = [row.mb_per_s[-1] for row in self.rows]
        counts = [row.threads for row in self.rows]
        if threads < counts[0]:
            return most[0] * threads / counts[0]
        return interpolate(threads, counts, most)

    def latency_ns(self, mb_per_s: float, threads: float) -> float:
        """Returns the latency of a load while `threads` threads move `mb_per_s`."""
        latencies = [row.at(mb_per_s) for row in self.rows]
        return interpolate(threads, [row.threads for row in self.rows], latencies)

    def steady_mb_per_s(self, lines_in_flight: float, threads: float, traffic: float) -> float:
        """Bandwidth at which so many lines in flight keep themselves up.

        Little's law and the curve meet in one point (PROFET's fixed point, Radulović et al.,
        SIGMETRICS'19): bytes in flight = bandwidth x latency at that bandwidth.

        lines_in_flight: fetches of 64 bytes, of all threads. traffic: lines moved for each fetched,
        2 where each comes back dirty.
        """
        in_flight_bytes = lines_in_flight * 64.0 * traffic
        low, high = 0.0, max(row.mb_per_s[-1] for row in self.rows)
        if high * 1e-3 * self.latency_ns(high, threads) <= in_flight_bytes:
            return high
        for _ in range(60):  # bandwidth x latency only grows with bandwidth
            middle = (low + high) / 2
            if middle * 1e-3 * self.latency_ns(middle, threads) < in_flight_bytes:
                low = middle
            else:
                high = middle
        return high


def interpolate(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """A straight line in logarithms between points; beyond the ends, their value.

    places: ascending. Both: above 0.
    """
    after = bisect_left(places, at)
    if after == len(places):
        return values[-1]
    if after == 0 or places[after] == at:
        return values[after]
    before = after - 1
    part = math.log(at / places[before]) / math.log(places[after] / places[before])
    return values[before] * math.pow(values[after] / values[before], part)
