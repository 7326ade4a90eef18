"""If a program fails on a rank outside of its collectives, the other ranks stop waiting for it."""

import re

import job
from absl.testing import absltest, parameterized


def run(*devices: int, devices_per_process: int = 1) -> dict[int, list[str]]:
    """Returns what each process printed if a host callback raises on these devices."""
    done = job.run(
        "failures/callback_raises.py",
        *map(str, devices),
        processes=2,
        devices_per_process=devices_per_process,
        timeout=90,
    )
    printed: dict[int, list[str]] = {0: [], 1: []}
    for process, text in re.findall(r"\[(\d)\] (\d.* s, .*|no error)", done.stdout):
        printed[int(process)].append(text)
    assert all(printed.values()), done.stdout + done.stderr
    return printed


class FailedProgramsTest(parameterized.TestCase):
    @parameterized.parameters(1, 2)
    def test_others_learn_it(self, devices_per_process):
        failed = 2 * devices_per_process - 1
        printed = run(failed, devices_per_process=devices_per_process)
        self.assertRegex(
            printed[0][0],
            rf"^\d\.\d s, PeerLostError: .*a program failed on rank {failed} .*, but not on rank"
            rf" \d: .*device {failed} has no data",
        )
        self.assertLess(float(printed[0][0].split()[0]), 2 + job.SOON)
        self.assertLess(float(printed[1][0].split()[0]), 4 + job.SOON)
        self.assertNotEqual(printed[1][0], "no error")

    def test_all_fail_and_go_on(self):
        for process, (first, second) in run(0, 1).items():
            self.assertIn(f"device {process} has no data", first)
            self.assertEqual(second, "no error")


if __name__ == "__main__":
    absltest.main()
