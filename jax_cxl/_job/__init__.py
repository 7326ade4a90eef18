"""The runtime of a process: settings, pool, start and stop, errors, and how jobs continue."""
