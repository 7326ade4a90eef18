"""Runs the example as a process of a job: train.py COORDINATOR PROCESS FLAG..."""

import runpy
import sys

import jax

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
sys.argv[1:3] = []
sys.path.insert(0, "/opt/project/examples")
runpy.run_path("/opt/project/examples/train_transformer.py", run_name="__main__")
