"""The entry point `jax_cxl` of the group `jax_plugins`. JAX calls it when it makes its backends.

Thanks to this entry point, an environment variable can replace the collectives of a program that
does not import jax_cxl.
"""

import functools
import os

from jax_cxl._job import variables
from jax_cxl._job.launched import entry_point


def initialize() -> None:
    """Replaces collectives from now on, if `JAX_CXL_REPLACE_COLLECTIVES` is set to do so.

    Warns if this is one of several processes that are not connected. Tells the other processes that
    this process makes its devices. Prepares for programs with collectives of jax_cxl that the
    process loads, even if it replaces none.

    Warns of unknown variables. If a variable has an invalid value, or if only some of the processes
    replace collectives, each compilation raises an error.
    """
    from jax_cxl._job import configuration
    from jax_cxl._job.launched import environment

    configuration.warn_of_unknown_variables()

    if environment.board is not None:
        environment.warn_if_alone()
    from jax_cxl._job.meeting import arrival

    arrival.announce(replaces=entry_point.wanted())
    from jax_cxl._job import lowered_programs
    from jax_cxl._takeover import loaded_programs

    loaded_programs.install()
    lowered_programs.before_compilation(_check_all_replace_alike)
    try:
        _apply_variables()
    except ValueError as error:
        # JAX logs what an entry point raises, and continues. Then this process would not replace
        # the collectives that the others replace. So each compilation raises the error again.
        lowered_programs.before_compilation(functools.partial(_raise, str(error)))
        raise


def _apply_variables() -> None:
    if os.environ.get("JAX_CXL_LOG"):
        _log_programs()
    if not entry_point.wanted():
        return
    value = os.environ[variables.REPLACE_COLLECTIVES]
    if value not in ("1", variables.STRICT):
        raise ValueError(
            f"{variables.REPLACE_COLLECTIVES}={value!r}: it must be 1, {variables.STRICT}, 0 or"
            " empty."
        )
    from jax_cxl._job import setting
    from jax_cxl._takeover import replace, start

    replace.replace_collectives(
        strict=value == variables.STRICT, early_bytes=setting.early_bytes()
    ).start()
    start.begin()


def _log_programs() -> None:
    """Prints where the collectives of each program go, if `JAX_CXL_LOG` is "info"."""
    from jax_cxl._job import configuration, information, lowered_programs
    from jax_cxl._takeover import install, survey

    if configuration.from_environment().log == "info":
        information.begin()
        survey.listeners.append(survey.log)
        lowered_programs.before_compilation(install.install)


@functools.cache
def _check_all_replace_alike() -> None:
    from jax_cxl._job.meeting import arrival

    arrival.check_replacement(entry_point.wanted())


def _raise(text: str) -> None:
    raise ValueError(text)
