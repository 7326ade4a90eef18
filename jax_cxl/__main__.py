"""The command line: `python -m jax_cxl <command> [options]`."""

import importlib
import sys

# Each command is the module whose main(arguments) runs it.
COMMANDS = {
    "bench": "jax_cxl._bench.cli",
    "clean": "jax_cxl._status.clean",
    "doctor": "jax_cxl._status.doctor",
    "simulate": "jax_cxl._simulate.cli",
    "status": "jax_cxl._status.status",
    "trace": "jax_cxl._status.trace",
    "tune": "jax_cxl._bench.tune",
}


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] not in COMMANDS:
        print(f"usage: python -m jax_cxl {{{','.join(COMMANDS)}}} ...", file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    module = importlib.import_module(COMMANDS[arguments[0]])
    return module.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
