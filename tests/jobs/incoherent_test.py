"""Collectives through JAX on an emulated pool without coherence. Seeds are printed.

`JAX_CXL_TEST_POOL=incoherent python -m pytest` runs the other tests on such a pool (conftest.py).
"""

import secrets
import unittest

import job
import pytest
from absl.testing import absltest, parameterized


def _soak(processes, devices_per_process, seed, seconds, leave_out=""):
    try:
        environment = job.incoherent_environment(seed, leave_out)
    except FileNotFoundError as error:
        raise unittest.SkipTest(str(error)) from None
    return job.run(
        "soak.py",
        f"--seconds={seconds}",
        processes=processes,
        devices_per_process=devices_per_process,
        environment=environment | {"JAX_CXL_POOL": "shm:", "JAX_CXL_TIMEOUT": "20"},
        quick=False,  # Programs have dtypes of all kinds.
    )


class IncoherentTest(parameterized.TestCase):
    @parameterized.parameters((2, 2), (4, 1))
    @pytest.mark.sample(2)
    def test_nothing_wrong(self, processes, devices_per_process):
        seed = secrets.randbits(32)
        print("seed", seed)
        done = _soak(processes, devices_per_process, seed, job.SECONDS)
        self.assertEqual(done.returncode, 0, f"seed {seed}\n{done.stdout}{done.stderr}")
        self.assertIn('"wrong_elements": 0', done.stdout)

    @parameterized.parameters("slot.write_back", "slot.invalidate", "released.wait")
    @pytest.mark.sample(3)
    def test_what_is_left_out_is_noticed(self, move):
        done = _soak(2, 1, seed=1, seconds=8, leave_out=move)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertRegex(
            done.stdout + done.stderr, "wrong elements|protocol error|Error", done.stdout
        )


if __name__ == "__main__":
    absltest.main()
