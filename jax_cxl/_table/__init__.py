"""Tables in a store: one copy for all hosts, from which programs take rows (docs/tables.md).

`table.Table` is the public class. It creates, opens and closes a table, and changes rows in steps
(`trained`). `open_table` contains its methods by which programs take and read rows. `sources` reads
rows from arrays and iterators, and `sections` writes and opens tables in a store. `columns`
contains the columns from which programs take rows, and `gather` the primitive.
"""
