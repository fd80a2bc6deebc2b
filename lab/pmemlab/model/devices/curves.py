"""Published or measured curves, with interpolation between their points.

Between points the interpolation is a straight line in logarithms. If other sizes have points at
numbers of threads that a size lacks, their shape bends that size's line
(`BandwidthCurve._bend_factor`). Beyond the points:

- fewer threads than were measured: each thread gets its share at the fewest measured threads, a
  lower bound, since fewer threads contend less;
- more threads: all threads together get the bandwidth of the most measured threads;
- larger accesses: the bandwidth of the largest size;
- smaller accesses: the time of the smallest size, of whose bytes only a part is used.
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

    threads: ascending; requests in flight for a block device. mb_per_s: 10^6 bytes/s, one per
    count.
    """

    size_bytes: int
    threads: tuple[int, ...]
    mb_per_s: tuple[float, ...]

    def covers(self, threads: float) -> bool:
        return self.threads[0] <= threads <= self.threads[-1]

    def gap(self, threads: float) -> tuple[int, int] | None:
        """Returns the nearest measured thread counts around `threads`; None if there is no such
        gap.
        """
        after = bisect_left(self.threads, threads)
        if not 0 < after < len(self.threads) or self.threads[after] == threads:
            return None
        return self.threads[after - 1], self.threads[after]

    def is_finer(self, gap: tuple[int, int], threads: float) -> bool:
        """Returns whether this row has both ends of another row's gap and a point between them."""
        if not set(gap) <= set(self.threads):
            return False
        return self.gap(threads) != gap

    def mb_per_s_at(self, threads: float) -> float:
        if threads <= self.threads[0]:
            return self.mb_per_s[0] * threads / self.threads[0]
        if threads >= self.threads[-1]:
            return self.mb_per_s[-1]
        return interpolate(threads, self.threads, self.mb_per_s)


class BandwidthCurve:
    """Bandwidth by access size and threads; sizes may have different thread counts."""

    def __init__(self, rows: Iterable[BandwidthRow]) -> None:
        """rows: one or more, by ascending size."""
        self.rows = tuple(rows)

    def covers(self, size_bytes: int, threads: float) -> bool:
        """Returns whether the value is interpolated between points rather than extrapolated."""
        sizes = [row.size_bytes for row in self.rows if row.covers(threads)]
        return bool(sizes) and sizes[0] <= size_bytes <= sizes[-1]

    def mb_per_s_at(self, size_bytes: int, threads: float) -> float:
        """Returns the MB/s of all threads together."""
        if size_bytes < self.rows[0].size_bytes:
            smallest = self.rows[0].size_bytes
            return self.mb_per_s_at(smallest, threads) * size_bytes / smallest
        # A size that was measured only with few threads tells nothing about many, and vice versa.
        rows = [row for row in self.rows if row.covers(threads)]
        if not rows or size_bytes < rows[0].size_bytes:
            rows = list(self.rows)
        sizes = [row.size_bytes for row in rows]
        above = min(bisect_left(sizes, size_bytes), len(rows) - 1)
        between = rows[max(above - 1, 0) : above + 1]
        values = [row.mb_per_s_at(threads) * self._bend_factor(row, threads) for row in between]
        return interpolate(size_bytes, [row.size_bytes for row in between], values)

    def _bend_factor(self, row: BandwidthRow, threads: float) -> float:
        """Returns the factor by which the nearest sizes with points inside this row's gap in thread
        counts differ from a straight line there, for example because bandwidth stops growing.
        """
        gap = row.gap(threads)
        if gap is None:
            return 1.0
        finer = [other for other in self.rows if other.is_finer(gap, threads)]
        sizes = [other.size_bytes for other in finer]
        bends = [
            other.mb_per_s_at(threads)
            / interpolate(threads, gap, [other.mb_per_s_at(end) for end in gap])
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
        """Returns the curve without the figures of a size and a number of threads (None stands for
        all sizes or numbers); None if nothing is left.
        """
        remaining: dict[int, list[tuple[int, float]]] = {}
        for size, count, mb_per_s in self.points():
            if size_bytes not in (None, size) or threads not in (None, count):
                remaining.setdefault(size, []).append((count, mb_per_s))
        rows = [
            BandwidthRow(size, *map(tuple, zip(*figures, strict=True)))
            for size, figures in remaining.items()
        ]
        return BandwidthCurve(rows) if rows else None


@dataclass(frozen=True)
class LoadedLatencyRow:
    """Latency of a load under the traffic of a number of threads.

    mb_per_s: the traffic, ascending; latency_ns: of a load beside that traffic, never falling.
    """

    threads: int
    mb_per_s: tuple[float, ...]
    latency_ns: tuple[float, ...]

    def latency_ns_at(self, mb_per_s: float) -> float:
        return interpolate(mb_per_s, self.mb_per_s, self.latency_ns)


class LoadedLatencyCurve:
    """Latency of a load by bandwidth of other traffic, for several numbers of threads."""

    def __init__(self, rows: Iterable[LoadedLatencyRow]) -> None:
        """rows: one or more, by ascending number of threads."""
        self.rows = tuple(rows)

    def max_mb_per_s(self, threads: float) -> float:
        """Returns the largest bandwidth that was measured with `threads` threads."""
        largest = [row.mb_per_s[-1] for row in self.rows]
        counts = [row.threads for row in self.rows]
        if threads < counts[0]:
            return largest[0] * threads / counts[0]
        return interpolate(threads, counts, largest)

    def latency_ns(self, mb_per_s: float, threads: float) -> float:
        """Returns the latency of a load while `threads` threads move `mb_per_s`."""
        latencies = [row.latency_ns_at(mb_per_s) for row in self.rows]
        return interpolate(threads, [row.threads for row in self.rows], latencies)

    def steady_mb_per_s(self, lines_in_flight: float, threads: float, traffic: float) -> float:
        """Returns the steady bandwidth of a given number of lines in flight.

        Little's law and the curve meet in one point (PROFET's fixed point, Radulović et al.,
        SIGMETRICS'19): bytes in flight = bandwidth x latency at that bandwidth.

        lines_in_flight: 64-byte fetches of all threads together. traffic: lines moved per fetched
        line, 2 if every line is written back.
        """
        in_flight_bytes = lines_in_flight * 64.0 * traffic
        low, high = 0.0, max(row.mb_per_s[-1] for row in self.rows)
        if high * 1e-3 * self.latency_ns(high, threads) <= in_flight_bytes:
            return high
        for _ in range(60):  # bisection: bandwidth x latency grows with bandwidth
            middle = (low + high) / 2
            if middle * 1e-3 * self.latency_ns(middle, threads) < in_flight_bytes:
                low = middle
            else:
                high = middle
        return high


def interpolate(position: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Returns the value at `position` on straight lines in logarithms; beyond the ends, the end
    values.

    places: ascending. Places and values are above 0.
    """
    after = bisect_left(places, position)
    if after == len(places):
        return values[-1]
    if after == 0 or places[after] == position:
        return values[after]
    before = after - 1
    part = math.log(position / places[before]) / math.log(places[after] / places[before])
    return values[before] * math.pow(values[after] / values[before], part)
