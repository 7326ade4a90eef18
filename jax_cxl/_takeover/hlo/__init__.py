"""Reads XLA's serialized modules, and changes them without loss.

XLA passes each module to a compiler hook as a serialized `HloModuleProto`. This package reads the
fields that the hook needs. It keeps every other byte, whichever version of XLA wrote the module.
It knows nothing about pools and ranks.
"""
