"""What `doctor` says about sockets, GPUs, links and pool devices, on made-up trees of sysfs."""

import os
import pathlib
import platform
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from jax_cxl._commands.status import bug_report, doctor, topology

_GPU, _CXL, _NETWORK = "0x030200", "0x050210", "0x020000"


class TopologyTest(parameterized.TestCase):
    """Makes trees of sysfs, device by device."""

    def setUp(self):
        super().setUp()
        self.sysfs = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def write(self, path: str, text: str) -> None:
        (self.sysfs / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sysfs / path).write_text(f"{text}\n")

    def add_socket(self, node: int, processors: str) -> None:
        self.write(f"devices/system/node/node{node}/cpulist", processors)
        self.write(f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal: 1024 kB")

    def add_pci(self, where: str, code: str, node: int | None, vendor: str = "0x10de") -> None:
        self.write(f"devices/{where}/class", code)
        self.write(f"devices/{where}/vendor", vendor)
        if node is not None:
            self.write(f"devices/{where}/numa_node", str(node))
        self.link(f"bus/pci/devices/{os.path.basename(where)}", f"devices/{where}")

    def add_dax(self, name: str, near: int) -> None:
        self.write(f"devices/region0/{name}/size", "4194304")
        self.write(f"devices/region0/{name}/numa_node", str(near))
        self.link(f"bus/dax/devices/{name}", f"devices/region0/{name}")

    def link(self, path: str, to: str) -> None:
        (self.sysfs / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sysfs / path).symlink_to(self.sysfs / to)

    def add_two_sockets(self) -> None:
        self.add_socket(0, "0-7")
        self.add_socket(1, "8-15")
        self.add_socket(2, "")  # memory without processors
        # A GPU and a link behind one switch of socket 0.
        switch = "pci0000:10/0000:10:01.0/0000:11:00.0"
        self.add_pci(f"{switch}/0000:12:00.0/0000:13:00.0", _GPU, 0)
        self.add_pci(f"{switch}/0000:12:01.0/0000:14:00.0", _CXL, 0, vendor="0x1b00")
        # A GPU on socket 1, and a link on another host bridge of the same socket.
        self.add_pci("pci0000:80/0000:80:01.0/0000:81:00.0", _GPU, 1)
        self.add_pci("pci0000:90/0000:90:01.0/0000:91:00.0", _CXL, 1, vendor="0x1b00")
        # `doctor` ignores a display of another maker, and a network adapter of the GPU's maker.
        self.add_pci("pci0000:00/0000:00:02.0", "0x030000", 0, vendor="0x1a03")
        self.add_pci("pci0000:80/0000:80:02.0/0000:82:00.0", _NETWORK, 1)
        self.add_dax("dax0.0", 0)
        self.add_dax("dax1.0", 1)

    def texts(self) -> list[str]:
        findings = doctor.check_topology(self.sysfs)
        return [f"{finding.level}: {finding.text}" for finding in findings]

    def test_two_sockets(self):
        self.add_two_sockets()
        self.assertEqual(
            self.texts(),
            [
                "ok: topology: NUMA node 0, processors 0-7: GPU 0000:13:00.0,"
                " CXL link 0000:14:00.0, /dev/dax0.0",
                "ok: topology: NUMA node 1, processors 8-15: GPU 0000:81:00.0,"
                " CXL link 0000:91:00.0, /dev/dax1.0",
                "ok: topology: GPU 0000:13:00.0 has CXL link 0000:14:00.0"
                " behind the same PCIe switch",
                "ok: topology: GPU 0000:81:00.0 has CXL link 0000:91:00.0 at the same socket",
            ],
        )

    def test_one_host_bridge_and_another_socket(self):
        self.add_socket(0, "0-3")
        self.add_pci("pci0000:10/0000:10:01.0/0000:11:00.0", _GPU, 0)
        self.add_pci("pci0000:10/0000:10:02.0/0000:12:00.0", _CXL, 0)
        self.add_pci("pci0000:20/0000:20:01.0/0000:21:00.0", _GPU, 0)
        self.add_pci("pci0000:80/0000:80:01.0/0000:81:00.0", _GPU, 1)
        gpus, links = topology.gpus(self.sysfs), topology.cxl_links(self.sysfs)
        self.assertEqual(
            [topology.nearest(gpu, links)[0] for gpu in gpus],
            ["at the same PCIe host bridge", "at the same socket", "not at its socket"],
        )

    def test_says_what_is_not_known(self):
        self.add_socket(0, "0-3")
        self.add_pci("pci0000:00/0000:00:05.0", _GPU, -1)
        self.add_pci("pci0000:20/0000:20:06.0", _CXL, None)
        self.add_dax("dax0.0", -1)
        nothing, unknown = self.texts()
        self.assertIn("processors 0-3: nothing near it", nothing)
        self.assertIn(
            "note: topology: not known for GPU 0000:00:05.0, CXL link 0000:20:06.0, /dev/dax0.0",
            unknown,
        )

    def test_a_node_without_a_list_of_processors(self):
        self.write("devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB")
        self.assertEmpty(topology.memory_nodes(self.sysfs))
        self.assertEmpty(topology.sockets(self.sysfs))

    @parameterized.parameters(
        (None, {}),
        ("processor\t: 0\nFeatures\t: fp asimd\n\nprocessor\t: 1\n", {"Features": "fp asimd"}),
        ("flags\t\t: clwb clflush\nmodel name\t: A: B\n", {"model name": "A: B"}),
    )
    def test_processors(self, text, expected):
        file = self.sysfs / "cpuinfo"
        if text is not None:
            file.write_text(text)
        with mock.patch.object(topology, "_CPUINFO", file):
            self.assertContainsSubset(expected, topology.cpuinfo())
            (finding,) = doctor.check_flush()
            report = list(bug_report.lines([], {}))
        self.assertEqual(finding.level, "ok" if "flags" in (text or "") else "note")
        self.assertIn(
            f"machine: {expected.get('model name', platform.machine())}, ", "\n".join(report)
        )

    def test_nothing_to_place(self):
        (finding,) = self.texts()
        self.assertIn("no GPU, CXL link or dax device", finding)


if __name__ == "__main__":
    absltest.main()
