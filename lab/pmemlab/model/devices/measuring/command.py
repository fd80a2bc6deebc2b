"""`pmemlab model measure`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pmemlab.errors import MeasuringError
from pmemlab.model.devices.device_file import MEDIA_LINE
from pmemlab.model.devices.measuring.figures import Figures, device_file_text
from pmemlab.model.devices.measuring.target import (
    FolderTarget,
    NodeTarget,
    Target,
    cpu_name,
    find_target,
    last_level_cache,
)
from pmemlab.progress_bar import progress_bar
from pmemlab.schema import YAML_SUFFIXES, parse_size
from pmemlab.whole_file import check_output, write_output

__all__ = ["measure_device"]

_CACHES_BESIDE = 8  # memory that is measured for each byte of the last-level cache
_DISK_BYTES = 4 << 30
_LEAST_SECONDS = 0.001  # less is no more than a few accesses
_CACHED_BYTES = 1 << 30


def measure_device(arguments: argparse.Namespace) -> Path:
    """The file that was written. Raises LabError."""
    output: Path = arguments.output
    for option, text in (("--name", arguments.name), ("--title", arguments.title)):
        if text is not None and not text.strip():
            raise MeasuringError(f"{option}: must be text; leave it out for the default")
    if output.suffix not in YAML_SUFFIXES:
        raise MeasuringError(f"-o {output}: must end with .yaml, for it to be taken as a file")
    check_output("-o", output)
    if output.exists() and not arguments.force:
        raise MeasuringError(f"-o {output}: is there already; give another name, or --force")
    if not _LEAST_SECONDS <= arguments.seconds < 3600:
        raise MeasuringError(
            f"--seconds {arguments.seconds:g}: must be {_LEAST_SECONDS:g} or more, and below 3600"
        )
    target = find_target(arguments.what)
    is_memory = isinstance(target, NodeTarget) or target.medium == "memory"
    if arguments.page_cache and is_memory:
        raise MeasuringError(f"--page-cache: {arguments.what} is memory and has none")
    cache_bytes = _cache_bytes(arguments, target, is_memory)
    least_bytes = _least_size(target, is_memory)
    wanted_bytes = _size(arguments.size, "--size")
    media_line_bytes = _size(arguments.media_line, "--media-line") or (64 if is_memory else 4096)
    if not MEDIA_LINE.holds(media_line_bytes):
        raise MeasuringError(f"--media-line {arguments.media_line}: must be {MEDIA_LINE.what}")
    if wanted_bytes is not None and wanted_bytes < least_bytes:
        raise MeasuringError(
            f"--size {arguments.size}: must be {least_bytes >> 10}K or more, for as many of the "
            "largest accesses as are made at a time"
        )
    size_bytes = wanted_bytes or max(
        least_bytes, _default_size(target, is_memory, cache_bytes, arguments.page_cache)
    )
    if size_bytes > target.free_bytes:
        raise MeasuringError(
            f"{arguments.what}: has {target.free_bytes >> 20} MiB free of the {size_bytes >> 20} "
            "that are to be measured; free some, or take less with --size"
        )
    figures = _measure(target, is_memory, size_bytes, arguments)
    if is_memory and size_bytes < _CACHES_BESIDE * cache_bytes:
        figures.notes.append(
            f"Only {size_bytes >> 20} MiB were measured, of which the last-level cache "
            f"({cache_bytes >> 20} MiB) holds up to {min(1, cache_bytes / size_bytes):.0%}: what "
            "is larger than the cache is slower than these figures."
        )
    text = device_file_text(
        figures,
        name=arguments.name or output.stem,
        title=arguments.title or _title(target),
        cpu=cpu_name(),
        capacity_bytes=target.total_bytes,
        media_line_bytes=media_line_bytes,
        last_level_cache_bytes=cache_bytes,
    )
    write_output("-o", output, text)
    return output


def _measure(
    target: Target,
    is_memory: bool,
    size_bytes: int,
    arguments: argparse.Namespace,
) -> Figures:
    # Only here: the commands that measure nothing do without the engine.
    from pmemlab.model.devices.measuring.files import file_steps, measure_files
    from pmemlab.model.devices.measuring.memory import (
        cpus_of,
        measure_memory,
        memory_steps,
        thread_counts,
    )

    steps = memory_steps(thread_counts(len(cpus_of(target)))) if is_memory else file_steps()
    with progress_bar(f"getting {size_bytes >> 20} MiB ready", steps) as show:

        def advance(what: str) -> None:
            show(advance=1, description=what)

        if is_memory:
            return measure_memory(target, size_bytes, arguments.seconds, advance)
        assert isinstance(target, FolderTarget)
        return measure_files(target, size_bytes, arguments.seconds, arguments.page_cache, advance)


def _cache_bytes(arguments: argparse.Namespace, target: Target, is_memory: bool) -> int:
    """Returns the size of the last-level cache before a memory, 0 for a disk."""
    given = _size(arguments.last_level_cache, "--last-level-cache")
    if given is None:
        return last_level_cache() if is_memory else 0
    if not is_memory:
        raise MeasuringError(f"--last-level-cache: {arguments.what} is a disk; leave it out")
    if not 64 <= given < target.total_bytes:
        raise MeasuringError(
            f"--last-level-cache {arguments.last_level_cache}: must be 64 bytes or more, and less "
            f"than the {target.total_bytes >> 20}M of {arguments.what}"
        )
    return given


def _least_size(target: Target, is_memory: bool) -> int:
    from pmemlab.model.devices.measuring.files import least_file_bytes
    from pmemlab.model.devices.measuring.memory import cpus_of, least_memory_bytes

    return least_memory_bytes(len(cpus_of(target))) if is_memory else least_file_bytes()


def _default_size(target: Target, is_memory: bool, cache_bytes: int, page_cache: bool) -> int:
    if is_memory:
        wanted = _CACHES_BESIDE * cache_bytes
    else:
        wanted = _CACHED_BYTES if page_cache else _DISK_BYTES
    # Half of what is free: others need some too.
    return max(2 << 20, min(wanted, target.free_bytes // 2))


def _size(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise MeasuringError(f"{option}: {error}") from None


def _title(target: Target) -> str:
    if isinstance(target, NodeTarget):
        return f"NUMA node {target.node} of {cpu_name()}"
    return f"{target.folder} ({target.file_system})"
