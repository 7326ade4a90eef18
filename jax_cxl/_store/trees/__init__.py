"""Trees of arrays: their leaves, and where the bytes of a tree go."""
