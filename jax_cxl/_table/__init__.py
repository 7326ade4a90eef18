"""Tables in a store: one copy for all hosts, of which programs take rows: docs/tables.md.

`table.Table` is the public class. `sources` reads rows from arrays, iterators and files, and
`creating` writes them. `columns` opens what programs take rows of, and `gather` has the primitive.
`trained` is a folder of what changes the rows.
"""
