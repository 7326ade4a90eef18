"""Writes a tree: the processes of a job agree, and each writes its part."""
