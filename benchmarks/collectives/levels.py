"""Times collectives over all devices in levels, as one call, and as the table chooses.

    python -m jax_cxl.launch -n 2 --devices-per-process 4
        benchmarks/collectives/levels.py --json FILE.json

`python -m jax_cxl tune --devices-per-process` measures in the same way. docs/levels.md has results.
"""

from jax_cxl._commands.bench import levels

if __name__ == "__main__":
    levels.main()
