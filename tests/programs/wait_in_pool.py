"""Holds a pool until its standard input ends."""

import sys

import jax_cxl

jax_cxl.initialize(sys.argv[1])
print("initialized", flush=True)
sys.stdin.read()
