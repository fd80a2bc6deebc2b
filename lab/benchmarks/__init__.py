"""Benchmark programs, outside of the installed packages."""
