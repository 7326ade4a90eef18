"""Training state in memory that outlives the hosts: docs/snapshots.md.

`snapshots.Snapshots` is the class that users see. `place` decides where each byte goes, `memory`,
`layout` and `stripes` know what lies where in the memory, `saving` and `restoring` move the bytes,
and `command` is the command line.
"""
