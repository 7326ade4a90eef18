"""Names of the environment variables of jax_cxl.

`configuration.Config` has a field for each variable that is not here. For example, its field
`timeout` is the variable `JAX_CXL_TIMEOUT`.
"""

# Whether XLA's collectives go through the pool: 1, STRICT, 0 or empty.
REPLACE_COLLECTIVES = "JAX_CXL_REPLACE_COLLECTIVES"
STRICT = "strict"
# On GPUs, how much memory may be spent on starting collectives early: a size, or "off".
EARLY_BYTES = "JAX_CXL_EARLY_BYTES"

# The launcher sets these for its ranks: the rank, the number of ranks, and how many times the ranks
# have been started again.
RANK = "JAX_CXL_LAUNCH_RANK"
SIZE = "JAX_CXL_LAUNCH_SIZE"
RESTARTS = "JAX_CXL_LAUNCH_RESTARTS"
# Set if the ranks continue without a rank that has failed.
GO_ON = "JAX_CXL_LAUNCH_GO_ON"

# Variables of JAX that the launcher sets for its ranks.
COORDINATOR = "JAX_COORDINATOR_ADDRESS"
COORDINATOR_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
LOCAL_DEVICES = "JAX_LOCAL_DEVICE_IDS"
CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
