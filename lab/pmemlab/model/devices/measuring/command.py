"""The command `pmemlab model measure`."""

from __future__ import annotations

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
from pmemlab.schema import YAML_SUFFIXES, size_of_option
from pmemlab.whole_file import check_output, write_output

__all__ = ["measure_device"]

_CACHES_BESIDE = 8  # bytes of memory to measure per byte of the last-level cache
_DISK_BYTES = 4 << 30
_MIN_SECONDS = 0.001  # shorter would time only a few accesses
_CACHED_BYTES = 1 << 30


def measure_device(
    what: str,
    output: Path,
    *,
    seconds: float,
    size: str | int | None = None,
    last_level_cache: str | int | None = None,
    media_line: str | int | None = None,
    name: str | None = None,
    title: str | None = None,
    page_cache: bool = False,
    force: bool = False,
) -> Path:
    """Measures a device and returns the path of the written file; takes the options of `pmemlab
    model measure`.

    what: a node or a folder. seconds: per figure. size, last_level_cache, media_line: as
    `parse_size` takes them; None: derived from the target, the system and the kind of device. name:
    by default the file's. Raises LabError, which names the option.
    """
    for option, text in (("--name", name), ("--title", title)):
        if text is not None and not (text.strip() and _is_unicode(text)):
            raise MeasuringError(f"{option}: must be text; leave it out for the default")
    if output.suffix not in YAML_SUFFIXES:
        raise MeasuringError(f"-o {output}: must end with .yaml, for it to be taken as a file")
    check_output("-o", output)
    if output.exists() and not force:
        raise MeasuringError(f"-o {output}: is there already; give another name, or --force")
    if not _MIN_SECONDS <= seconds < 3600:
        raise MeasuringError(
            f"--seconds {seconds:g}: must be {_MIN_SECONDS:g} or more, and below 3600"
        )
    target = find_target(what)
    if page_cache and target.is_memory:
        raise MeasuringError(f"--page-cache: {what} is memory and has none")
    cache_bytes = _cache_bytes(last_level_cache, target, what)
    min_bytes = _min_size(target)
    wanted_bytes = size_of_option("--size", size, MeasuringError)
    media_line_bytes = size_of_option("--media-line", media_line, MeasuringError)
    media_line_bytes = media_line_bytes or (64 if target.is_memory else 4096)
    if not MEDIA_LINE.holds(media_line_bytes):
        raise MeasuringError(f"--media-line {media_line}: must be {MEDIA_LINE.what}")
    if wanted_bytes is not None and wanted_bytes < min_bytes:
        raise MeasuringError(
            f"--size {size}: must be {min_bytes >> 10}K or more, for as many of the largest "
            "accesses as are made at a time"
        )
    size_bytes = wanted_bytes or max(min_bytes, _default_size(target, cache_bytes, page_cache))
    if size_bytes > target.free_bytes:
        raise MeasuringError(
            f"{what}: has {target.free_bytes >> 20} MiB free of the {size_bytes >> 20} that are to "
            "be measured; free some, or take less with --size"
        )
    figures = _measure(target, size_bytes, seconds, page_cache)
    if target.is_memory and size_bytes < _CACHES_BESIDE * cache_bytes:
        figures.notes.append(
            f"Only {size_bytes >> 20} MiB were measured, of which the last-level cache "
            f"({cache_bytes >> 20} MiB) holds up to {min(1, cache_bytes / size_bytes):.0%}: what "
            "is larger than the cache is slower than these figures."
        )
    text = device_file_text(
        figures,
        name=name or output.stem,
        title=title or _title(target),
        cpu=cpu_name(),
        capacity_bytes=target.total_bytes,
        media_line_bytes=media_line_bytes,
        last_level_cache_bytes=cache_bytes,
    )
    write_output("-o", output, text)
    return output


def _measure(target: Target, size_bytes: int, seconds: float, page_cache: bool) -> Figures:
    # Imported late: other commands don't need the engine.
    from pmemlab.model.devices.measuring.files import file_steps, measure_files
    from pmemlab.model.devices.measuring.memory import (
        cpus_of,
        measure_memory,
        memory_steps,
        thread_counts,
    )

    in_memory = memory_steps(thread_counts(len(cpus_of(target))))
    with progress_bar(
        f"getting {size_bytes >> 20} MiB ready", in_memory if target.is_memory else file_steps()
    ) as show:

        def advance(title: str) -> None:
            show(advance=1, description=title)

        if target.is_memory:
            return measure_memory(target, size_bytes, seconds, advance)
        assert isinstance(target, FolderTarget)
        return measure_files(target, size_bytes, seconds, page_cache, advance)


def _cache_bytes(option: str | int | None, target: Target, target_name: str) -> int:
    """Returns the size of the last-level cache in front of a memory; 0 for a disk."""
    size = size_of_option("--last-level-cache", option, MeasuringError)
    if size is None:
        return last_level_cache() if target.is_memory else 0
    if not target.is_memory:
        raise MeasuringError(f"--last-level-cache: {target_name} is a disk; leave it out")
    if not 64 <= size < target.total_bytes:
        raise MeasuringError(
            f"--last-level-cache {option}: must be 64 bytes or more, and less than the "
            f"{target.total_bytes >> 20}M of {target_name}"
        )
    return size


def _min_size(target: Target) -> int:
    from pmemlab.model.devices.measuring.files import min_file_bytes
    from pmemlab.model.devices.measuring.memory import cpus_of, min_memory_bytes

    return min_memory_bytes(len(cpus_of(target))) if target.is_memory else min_file_bytes()


def _default_size(target: Target, cache_bytes: int, page_cache: bool) -> int:
    if target.is_memory:
        size = _CACHES_BESIDE * cache_bytes
    else:
        size = _CACHED_BYTES if page_cache else _DISK_BYTES
    # Half of what is free: other programs need memory too.
    return max(2 << 20, min(size, target.free_bytes // 2))


def _is_unicode(text: str) -> bool:
    """Returns whether a file can hold the text: it has no surrogates, which stand for bytes of the
    command line that aren't UTF-8.
    """
    return all(not 0xD800 <= ord(character) < 0xE000 for character in text)


def _title(target: Target) -> str:
    if isinstance(target, NodeTarget):
        return f"NUMA node {target.node} of {cpu_name()}"
    return f"{target.folder} ({target.file_system})"
