"""Random programs for GPUs whose collectives start early, and an independent check of their order.

`absent_gpus.py` compiles for GPUs that are not there, and `programs.py` makes the programs. The
check reads XLA's own text (`text.py`). `values.py` finds which values share memory, by the rules
of XLA's alias analysis. `replay.py` executes an order on that memory, and `check.py` compares the
orders without and with early starts. `assigned.py` executes an order on the buffers that XLA has
assigned. None of these uses `jax_cxl._takeover.schedule`.
"""
