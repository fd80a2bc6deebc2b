"""The project's own checkpoint format for mapped files. LAYOUT.md describes every byte."""

from benchmarks.checkpoint_io.mapped_file.reader import load, newest_extent
from benchmarks.checkpoint_io.mapped_file.writer import SaveReport, save

__all__ = ["SaveReport", "load", "newest_extent", "save"]
