"""jax_cxl.replace_collectives: any JAX program communicates through the pool."""

import contextlib
from typing import Any

from jax_cxl._job import lowered_programs, setting
from jax_cxl._lowering.primitives import arguments
from jax_cxl._takeover import install, start


class replace_collectives(contextlib.ContextDecorator):
    """Makes XLA's collectives between processes run through the pool.

    Their source does not matter: the partitioner for `jax.jit` with shardings, `jax.lax` under
    `jax.shard_map`, `jax.pmap`, or a library. XLA itself executes collectives within one process.

    The setting applies when a program is compiled. It applies to all threads of the process, in the
    `with` block or from `start` to `stop`. The last setting wins. A program that was compiled under
    one setting is never used under another. All processes must compile a program under the same
    setting.

    XLA itself executes a collective that cannot be taken over, such as a collective over groups of
    different sizes, on all ranks. A warning of the logger "jax_cxl" names it once, with the reason.

    The environment variable `JAX_CXL_REPLACE_COLLECTIVES=1` does the same for a whole program
    without a change to it.

    Args:
      local: whether collectives within one process are taken over too.
      strict: whether a collective that cannot be taken over is an error.
      levels: how the devices of one CPU process take part, as in `jax_cxl.psum`. True first
        combines their data inside the process (docs/levels.md), wherever the devices of the groups
        are spread evenly over processes. False never does. None decides by a table.
      early_bytes: on GPUs, by how many bytes the memory of a program may grow so that collectives
        start earlier than in XLA's schedule. None: they start where XLA's schedule has them.

    Raises:
      TypeError: an argument has a wrong type.
      ValueError: early_bytes is negative.
      NotImplementedError: when a program is compiled for GPUs with `levels=True`.
      InvalidCollectiveError: when a program is compiled, in strict mode.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))
      >>> with jax_cxl.replace_collectives(local=True):
      ...   total = jax.jit(jnp.sum)(x)
      >>> total
      Array(28., dtype=float32)
    """

    def __init__(
        self,
        *,
        local: bool = False,
        strict: bool = False,
        levels: bool | None = None,
        early_bytes: int | None = setting.EARLY_BYTES,
    ) -> None:
        name = "replace_collectives"
        self._setting = setting.Setting(
            arguments.boolean(name, "local", local),
            arguments.boolean(name, "strict", strict),
            arguments.levels(name, levels),
            None
            if early_bytes is None
            else arguments.not_negative(name, "early_bytes", early_bytes),
        )
        # The settings before each `start` that has no `stop` yet.
        self._before: list[setting.Setting | None] = []

    def __enter__(self) -> "replace_collectives":
        return self.start()

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def start(self) -> "replace_collectives":
        """Makes this the setting."""
        lowered_programs.before_compilation(_install)
        self._before.append(setting.current())
        setting.context.set_global(self._setting)
        return self

    def stop(self) -> None:
        """Restores the setting that was active before `start`."""
        if not self._before:
            raise RuntimeError(
                "jax_cxl.replace_collectives: stop() without start(). Call start() first."
            )
        setting.context.set_global(self._before.pop())


def _install() -> None:
    install.install()
    start.begin()
