"""How programs end: normally, with an error, or by a signal."""
