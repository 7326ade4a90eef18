"""What `doctor` says about the processor and about NUMA nodes, on made-up files."""

import pathlib
import platform
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from jax_cxl._commands.status import bug_report, doctor, hardware


class HardwareTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def test_a_node_without_a_list_of_processors(self):
        file = self.folder / "devices/system/node/node0/meminfo"
        file.parent.mkdir(parents=True)
        file.write_text("Node 0 MemTotal: 1024 kB")
        self.assertEmpty(hardware.memory_nodes(self.folder))

    @parameterized.parameters(
        (None, {}),
        ("processor\t: 0\nFeatures\t: fp asimd\n\nprocessor\t: 1\n", {"Features": "fp asimd"}),
        ("flags\t\t: clwb clflush\nmodel name\t: A: B\n", {"model name": "A: B"}),
    )
    def test_processors(self, text, expected):
        file = self.folder / "cpuinfo"
        if text is not None:
            file.write_text(text)
        with mock.patch.object(hardware, "_CPUINFO", file):
            self.assertContainsSubset(expected, hardware.cpuinfo())
            (finding,) = doctor.check_flush()
            report = list(bug_report.lines([], {}))
        self.assertEqual(finding.level, "ok" if "flags" in (text or "") else "note")
        self.assertIn(
            f"machine: {expected.get('model name', platform.machine())}, ", "\n".join(report)
        )


if __name__ == "__main__":
    absltest.main()
