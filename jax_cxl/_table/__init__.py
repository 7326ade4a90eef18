"""Tables in a store: one copy for all hosts, of which programs take rows: docs/tables.md.

`table.Table` is the public class. It creates, opens and closes a table; `open_table` describes and
reads it, `taking` has what programs take, and `training` the steps that change rows (`trained`).
`sources` reads rows from arrays, iterators and files, and `creating` writes them. `columns` opens
what programs take rows of, and `gather` has the primitive.
"""
