"""Programs that test and model jax_cxl but do not measure it: `python -m lab.fuzz.fuzz_moe`.

They run in the root of a checkout, whose tests/helpers they use.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/helpers"))
