"""Figures of results files and of the simulator. Needs matplotlib."""
