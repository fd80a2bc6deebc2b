"""Files of rows that other programs can read and write: Parquet and safetensors.

A folder of such files has a table's rows in ascending order of keys. `writing` writes a folder from
a table, and `reading` puts a folder's rows into a table. `parquet` and `safetensors` implement one
format each: `write` writes the columns of a file, and a `RowFile` reads a file.
"""
