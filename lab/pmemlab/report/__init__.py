"""One page with all results of a folder: figures, tables and machines' proofs.

`documents` reads the folder; each file of `sections` makes a part of the page, `drawing` its
figures, and `page` the HTML around them.
"""
