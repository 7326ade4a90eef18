"""Parts of the local launcher, `python -m jax_cxl.launch`.

environment   what a rank finds in its environment, and `launched()`
detect        makes `jax.distributed.initialize()` find the launcher's values
rank          what runs in a rank before the user's script
coordinator   JAX's coordination service, where ranks go on without one that has failed
process       Linux process control: parent-death signal, subreaper, descendants
post_mortem   what the ranks did last, after they are gone
output        whole, prefixed lines from many ranks on one terminal or file
supervisor    starts the ranks, watches them, ends them

Nothing here imports JAX: a script may still set the environment that JAX reads when imported.
"""
