"""Training state in memory that outlives the hosts: docs/snapshots.md.

`snapshots.Snapshots` is the public class. `flatten` splits a tree into leaves, `description`
contains what all processes agree on, and `save_agreement` lets them agree. `place` decides where
each byte goes. `memory`, `layout` and `stripes` describe the layout of the memory. `saving`,
`restoring` and `rebuilding` move the bytes. `command` is the command line.
"""
