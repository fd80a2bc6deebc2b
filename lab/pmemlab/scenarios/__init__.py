"""Scenarios: what is run where, what must then hold, and what was found."""
