"""One page of all that a folder of results says: figures, tables and machines' proofs.

`documents` says what may lie in the folder; each file of `sections` makes a part of the page,
`drawing` its figures, and `page` the HTML around them.
"""
