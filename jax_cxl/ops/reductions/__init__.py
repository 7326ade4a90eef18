"""Reductions whose result all ranks get."""
