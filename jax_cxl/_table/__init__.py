"""Tables in a store: one copy for all hosts, from which programs take rows (docs/tables.md).

`table.Table` is the public class. It creates, opens and closes a table; `open_table` describes and
reads it. `taking` contains the methods by which programs take rows, and `training` those that
change rows in steps (`trained`). `sources` reads rows from arrays, iterators and files, and
`creating` writes them. `columns` opens the columns from which programs take rows, and `gather`
contains the primitive.
"""
