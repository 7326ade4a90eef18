"""Moves starts of collectives to earlier places of XLA's schedule.

XLA's scheduler for GPUs assumes faster links than the pool, and starts a collective shortly before
its result is needed. `barriers.py` removes what keeps starts late without need, `graph.py` reads a
scheduled computation, `costs.py` estimates how long its instructions take, and `order.py` decides.
"""
