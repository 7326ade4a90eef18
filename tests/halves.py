"""The operations with start and done, and arguments for calls in tests."""

from collections.abc import Callable

from jax_cxl import ops

ARGUMENTS = {
    "all_gather": {"axis": 1, "tiled": True},
    "all_to_all": {"split_axis": 0, "concat_axis": 1, "tiled": True},
    "broadcast": {"root": 2},
    "gather": {"root": 1},
    "pbroadcast": {"source": 1},
    "pexscan": {},
    "pmax": {},
    "pmean": {},
    "pmin": {},
    "ppermute": {"perm": [(0, 1), (2, 0)]},
    "pscan": {"reverse": True},
    "pshuffle": {"perm": [2, 0, 3, 1]},
    "psum": {},
    "psum_scatter": {"tiled": True},
    "pswapaxes": {"axis": 0},
    "reduce": {"root": 3},
    "scatter": {"root": 2, "tiled": True},
}
# Those with a derivative.
LINEAR = tuple(name for name in ARGUMENTS if name not in ("pmax", "pmin"))


def halves(name: str) -> tuple[Callable, Callable]:
    return getattr(ops, f"{name}_start"), getattr(ops, f"{name}_done")
