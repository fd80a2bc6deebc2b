"""Benchmarks of the engine: `python -m embstore.bench --help` names them.

Every rate is taken beside a yardstick in the same run, contender after contender in turn, and
is to be read as a ratio: machines differ, and a shared one differs from minute to minute.
"""
