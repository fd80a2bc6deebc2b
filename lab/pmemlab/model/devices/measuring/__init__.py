"""Measures this computer's memory and disks, and writes device files."""
