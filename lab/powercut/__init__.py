"""Emulated power cuts, which lose everything that a program did not flush.

Use the command `powercut` at a shell, and the fixture `power_cut` in pytest; see README.md here.
"""
