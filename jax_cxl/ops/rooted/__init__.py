"""Collectives with a root."""
