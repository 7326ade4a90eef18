"""How programs end: in order, with an error, or by a signal."""
