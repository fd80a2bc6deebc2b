"""How long rows take on devices that need not be here; no machine runs in this room.

`devices` has what was published or measured of each memory, disk and GPU, and so the time of an
access. `prediction` says how long a run that was recorded here takes on other devices, and
`planning` the same of a table that nobody has trained yet: its hit rates, its rate, its machines
and their price. `openembedding` predicts a published system by its paper. `fidelity` holds all of
them against what was published or measured.
"""
