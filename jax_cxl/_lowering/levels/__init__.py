"""Collectives in levels: inside each process first, then between processes through the pool."""
