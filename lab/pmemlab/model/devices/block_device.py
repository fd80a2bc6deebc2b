"""Disks: read and written in blocks, with several requests in flight.

The bandwidth of n requests in flight is the lesser of

- n x size / time of a single request (Little's law): the idle latency, which is given for one
  block, plus the transfer of the bytes beyond one block;
- the published curve at that size: a ceiling if it has one number of requests in flight, or
  interpolated if it has several.

An access alone takes the time that the curve gives for one request in flight, or else the idle
latency as above.

Makers publish random reads of 4 KiB and sequential reads of about 128 KiB. A disk without moving
parts reads large blocks at random as fast as in sequence, so random reads of sizes in between are
interpolated.
"""

from __future__ import annotations

from embstore.devices import Access
from pmemlab.errors import LabError, NotPublishedError
from pmemlab.model.devices.curves import BandwidthCurve
from pmemlab.model.devices.device_file import Curve
from pmemlab.model.devices.model import SingleFileDevice

__all__ = ["BlockDevice"]

# The curves that model an access; the first that the file has is used.
_CURVES: dict[Access, tuple[Curve, ...]] = {
    Access.FILE_READ: (("read", "random"),),
    Access.FILE_WRITE: (("write", "sequential"), ("write", "random")),
}


class BlockDevice(SingleFileDevice):
    @property
    def cpu_cache_bytes(self) -> int:
        return 0

    def missing(self, access: Access) -> LabError | None:
        if access not in _CURVES:
            return LabError(
                f"{self.name}: is a disk, which is read and written as files, not by {access.name}"
            )
        if not any(curve in self.file.bandwidth for curve in _CURVES[access]):
            return self._unpublished(*_CURVES[access][0])
        return None

    def _time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        operation, pattern = self._curve_of(access)
        of_thread = self._concurrency.file_reads
        if access == Access.FILE_WRITE:
            of_thread = self._concurrency.file_writes
        blocks_bytes = self._whole_blocks(size_bytes)
        in_flight = of_thread * threads
        mb_per_s = self.bandwidth_mb_per_s(operation, pattern, blocks_bytes, in_flight)
        return blocks_bytes * threads * 1e3 / mb_per_s

    def _alone_ns(self, access: Access, size_bytes: int) -> float:
        operation, pattern = self._curve_of(access)
        blocks_bytes = self._whole_blocks(size_bytes)
        curve = self._curve(operation, pattern)
        idle_ns = self._idle_ns(operation, pattern, blocks_bytes)
        of_few = any(row.covers(1) for row in curve.rows)
        if curve.covers(blocks_bytes, 1) or (of_few and idle_ns is None):
            return blocks_bytes * 1e3 / curve.mb_per_s_at(blocks_bytes, 1)
        if idle_ns is None:
            raise NotPublishedError(
                f"{self.name}: neither the idle latency of a {pattern} {operation} nor its "
                f"bandwidth with one in flight is in {self.file.path}"
            )
        return idle_ns

    def _curve_of(self, access: Access) -> Curve:
        return next(curve for curve in _CURVES[access] if curve in self.file.bandwidth)

    def _whole_blocks(self, size_bytes: int) -> int:
        return -(-size_bytes // self.media_line_bytes) * self.media_line_bytes

    def bandwidth_mb_per_s(
        self, operation: str, pattern: str, size_bytes: int, threads: int
    ) -> float:
        """Returns the bandwidth of `threads` requests in flight together."""
        curve = self._curve(operation, pattern)
        fewest = max(row.threads[0] for row in curve.rows)
        idle_ns = self._idle_ns(operation, pattern, size_bytes)
        if fewest == 1 or idle_ns is None:
            return curve.mb_per_s_at(size_bytes, threads)
        # The curve is a ceiling. Requests smaller than its smallest size have the same ceiling; the
        # latency limits them, not the size.
        smallest = curve.rows[0].size_bytes
        ceiling = curve.mb_per_s_at(max(size_bytes, smallest), max(threads, fewest))
        return min(ceiling, threads * size_bytes * 1e3 / idle_ns)

    def _curve(self, operation: str, pattern: str) -> BandwidthCurve:
        curve = self.file.bandwidth.get((operation, pattern))
        if curve is None:
            raise self._unpublished(operation, pattern)
        sequential = self.file.bandwidth.get((operation, "sequential"))
        if pattern == "sequential" or sequential is None:
            return curve
        largest = curve.rows[-1].size_bytes
        return BandwidthCurve(
            [*curve.rows, *(row for row in sequential.rows if row.size_bytes > largest)]
        )

    def _idle_ns(self, operation: str, pattern: str, size_bytes: int) -> float | None:
        idle_ns = self.file.idle_latency.get((operation, pattern))
        if idle_ns is None:
            return None
        curve = self._curve(operation, pattern)
        beyond_bytes = max(0, size_bytes - self.media_line_bytes)
        return idle_ns + beyond_bytes * 1e3 / max(row.mb_per_s[-1] for row in curve.rows)
