"""Moves starts of collectives to earlier places of XLA's schedule.

XLA's scheduler for GPUs assumes faster links than the pool, and starts a collective shortly before
its result is needed. `graph.py` reads a scheduled computation, and `memory.py` finds which of its
results share memory. `costs.py` estimates how long its instructions take. `order.py` chooses an
order, by the time (`model.py`) and the memory (`usage.py`) that it takes.
"""
