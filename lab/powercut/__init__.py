"""Emulated power cuts, which lose what was not flushed.

`powercut` is for the shell, the fixture `power_cut` for pytest; see README.md here.
"""
