"""Models of how long accesses to rows take on devices that this computer need not have.

`devices` has the published or measured figures of each memory, disk and GPU, and derives the time
of an access. `prediction` predicts how long a run that was recorded here takes on other devices.
`planning` predicts a table that was never trained: its hit rates, its rate, its machines and their
price. `openembedding` predicts a published system from its paper. `fidelity` compares all of these
predictions with published or measured figures. Nothing in this package runs a machine.
"""
