"""Parts of the local launcher, `python -m jax_cxl.launch`.

environment   the environment variables of a rank, and `launched()`
board         which ranks have begun to connect, and which have ended
cores         which cores each rank gets
detect        makes `jax.distributed.initialize()` find the launcher's values
mpi           makes it find the values of MPI launchers that JAX does not know
rank          the code that runs in a rank before the user's script
coordinator   JAX's coordination service, if ranks continue without a rank that has failed
process       Linux process control: parent-death signal, subreaper, descendants
post_mortem   the last calls of the ranks, after they are gone
output        whole, prefixed lines of many ranks on one terminal or file
supervisor    starts the ranks, watches them, ends them

Nothing here imports JAX, because the script may set environment variables that JAX reads when it is
imported.
"""
