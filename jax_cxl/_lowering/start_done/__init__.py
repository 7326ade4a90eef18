"""Collectives in two halves, `start` and `done`."""
