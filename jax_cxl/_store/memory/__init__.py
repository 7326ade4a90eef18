"""The memory of a store: its layout, and how its bytes are read and written."""
