"""Runs examples/train_jit.py, and then prints how much went through the pool."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import jax
import train_jit
from absl import app

import jax_cxl


def main(argv: list[str]) -> None:
    train_jit.main(argv)
    stats = jax_cxl.stats()
    print(
        f"process {jax.process_index()}: {stats.collectives_taken} taken,"
        f" {stats.collectives_left} left, {stats.calls} calls",
        flush=True,
    )


if __name__ == "__main__":
    app.run(main)
