"""Which sockets, GPUs, CXL links and pool devices of this host are near each other."""

import dataclasses
import pathlib

from jax_cxl._commands.status import dax_devices

_SYSFS = pathlib.Path("/sys")
_NVIDIA = 0x10DE
# The upper bytes of PCI's class codes.
_DISPLAY, _CXL_MEMORY = 0x03, 0x0502


@dataclasses.dataclass(frozen=True)
class PciDevice:
    """A GPU, or a CXL memory device, which is a link to a pool.

    Attributes:
      address: such as "0000:17:00.0".
      node: the NUMA node of the socket that it is attached to, -1 if that is not known.
      bridges: the PCI bridges above it, from the host's own (such as "pci0000:15") downwards.
    """

    address: str
    node: int
    bridges: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Socket:
    """A NUMA node with processors, such as node 0 with processors "0-31"."""

    node: int
    processors: str


def sockets(sysfs: pathlib.Path = _SYSFS) -> list[Socket]:
    """Returns the NUMA nodes that have processors."""
    found = []
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        try:
            processors = (folder / "cpulist").read_text().strip()
        except OSError:
            continue
        if processors:
            found.append(Socket(int(folder.name.removeprefix("node")), processors))
    return sorted(found, key=lambda socket: socket.node)


def gpus(sysfs: pathlib.Path = _SYSFS) -> list[PciDevice]:
    """Returns NVIDIA's GPUs."""
    return [
        _device(folder)
        for folder, code in _pci_devices(sysfs)
        if code >> 16 == _DISPLAY and dax_devices.number(folder / "vendor") == _NVIDIA
    ]


def cxl_links(sysfs: pathlib.Path = _SYSFS) -> list[PciDevice]:
    """Returns the CXL memory devices: each is a link to memory, or to a switch with a pool."""
    return [_device(folder) for folder, code in _pci_devices(sysfs) if code >> 8 == _CXL_MEMORY]


def nearest(gpu: PciDevice, links: list[PciDevice]) -> tuple[str, list[PciDevice]]:
    """Returns the links that are nearest to a GPU, and a text about how near they are.

    If the NUMA node of the GPU, or of every link, is unknown, no link is nearest.
    """
    shared = {link.address: _shared(gpu, link) for link in links}
    most = max(shared.values(), default=0)
    if most > 0:
        where = "behind the same PCIe switch" if most > 1 else "at the same PCIe host bridge"
        return where, [link for link in links if shared[link.address] == most]
    local = [link for link in links if gpu.node >= 0 and link.node == gpu.node]
    if local:
        return "at the same socket", local
    return "not at its socket", [link for link in links if gpu.node >= 0 and link.node >= 0]


def _shared(one: PciDevice, other: PciDevice) -> int:
    """Returns how many bridges are above both devices."""
    count = 0
    for mine, theirs in zip(one.bridges, other.bridges, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _pci_devices(sysfs: pathlib.Path) -> list[tuple[pathlib.Path, int]]:
    """Returns the folders of all PCI devices, and their class codes."""
    found = []
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        code = dax_devices.number(folder / "class")
        if code is not None:
            found.append((folder.resolve(), code))
    return found


def _device(folder: pathlib.Path) -> PciDevice:
    """Reads a device from its real folder in sysfs, which lies in the folders of its bridges."""
    node = dax_devices.number(folder / "numa_node")
    bridges: list[str] = []
    for parent in folder.parents:
        bridges.insert(0, parent.name)
        if parent.name.startswith("pci"):
            break
    else:
        bridges = []
    return PciDevice(folder.name, -1 if node is None else node, tuple(bridges))
