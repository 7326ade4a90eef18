"""Finds valid versions of a tree, reads them, examines and repairs them."""
