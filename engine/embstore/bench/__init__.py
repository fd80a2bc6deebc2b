"""Benchmarks of the engine: `python -m embstore.bench --help` lists them.

Every rate is measured beside a yardstick's in the same run, with the contenders taking turns. Read
it as a ratio: machines differ, and a shared machine differs from minute to minute.
"""
