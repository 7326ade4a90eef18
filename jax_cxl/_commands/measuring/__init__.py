"""Measures collectives and writes results, for commands and for programs of the checkout."""
