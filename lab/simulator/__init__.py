"""The model of `python -m lab.simulator`. It needs no pool, no GPU and no JAX."""

import importlib.util

if importlib.util.find_spec(f"{__name__}._simulator") is None:
    raise ImportError(
        "the simulator has not been built: cmake -S . -B build/dev -G Ninja -DJAX_CXL_TESTS=ON"
        " && cmake --build build/dev --target _simulator"
    )
