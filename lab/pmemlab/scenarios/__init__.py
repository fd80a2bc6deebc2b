"""Scenarios: programs on machines, the conditions that must hold after them, and the results."""
