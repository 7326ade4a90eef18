"""Moves starts of collectives to earlier places of XLA's schedule.

XLA's scheduler for GPUs assumes faster links than the pool, and starts a collective shortly before
its result is needed. `memory.py` finds which instructions may run earlier. `costs.py` estimates how
long they take. `order.py` chooses an order.
"""
