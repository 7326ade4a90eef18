"""XLA's modules in their serialized form: read, and changed without loss.

XLA hands a compiler hook each module as a serialized `HloModuleProto`. This package reads of it
what the hook needs and keeps every other byte as it is, whatever version of XLA wrote it. It knows
nothing of pools and ranks.
"""
