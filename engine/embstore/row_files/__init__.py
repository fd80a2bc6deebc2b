"""Rows in files that other programs read and write: Parquet and safetensors.

A folder of them has a table's rows in ascending order of keys, so many a file. `writing` fills one
from a table, and `reading` puts one into a table. `parquet` and `safetensors` know a format each:
how to `write` the columns of a file, and how to open a file as a `RowFile`.
"""
