"""Training state in memory that outlives the hosts: docs/snapshots.md.

`snapshots.Snapshots` is the public class. `place` decides where each byte goes. `memory`, `layout`
and `stripes` describe the layout of the memory. `saving` and `restoring` move the bytes. `command`
is the command line.
"""
