"""Training state in memory that outlives the hosts: docs/store.md.

`snapshots.Snapshots` and `store.Store` are the public classes. Both use `publishing.Names`, as
tables and offload do. `trees` splits a tree into leaves, and decides where each byte goes. `memory`
has the layout of the memory. `writing` makes the processes agree on a version, and saves it.
`reading` restores and repairs versions. `_commands/store` is the command line.
"""
