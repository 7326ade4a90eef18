"""Which sockets, GPUs, CXL links and dax devices this host has, as Linux shows them."""

import contextlib
import dataclasses
import itertools
import pathlib

_SYSFS = pathlib.Path("/sys")
_CPUINFO = pathlib.Path("/proc/cpuinfo")
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
class DaxDevice:
    """A dax device.

    Attributes:
      name: such as "dax0.0".
      size: size in bytes, None if sysfs does not have it.
      align: alignment of offsets and sizes in bytes; None if sysfs does not have it.
      driver: "device_dax" (mode devdax: /dev/dax0.0), "kmem" (mode system-ram), or "".
      node: the NUMA node of the memory, -1 if there is none.
      near: the NUMA node of the processors that are nearest, -1 if that is not known.
      region: the device to which the memory belongs, such as "region0" or "ndbus0/region0".
    """

    name: str
    size: int | None
    align: int | None
    driver: str
    node: int
    near: int
    region: str


def cpuinfo() -> dict[str, str]:
    """Returns what /proc/cpuinfo reports about the first processor."""
    first, _, _ = _text(_CPUINFO).partition("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def sockets(sysfs: pathlib.Path = _SYSFS) -> dict[int, str]:
    """Returns the NUMA nodes that have processors, and their processors, such as "0-31"."""
    return {node: processors for node, processors, _ in _nodes(sysfs) if processors}


def memory_nodes(sysfs: pathlib.Path = _SYSFS) -> dict[int, int]:
    """Returns the sizes of the NUMA nodes that have neither processors nor a dax device."""
    taken = {device.node for device in dax_devices(sysfs) if device.driver == "kmem"}
    found = {}
    for node, processors, folder in _nodes(sysfs):
        if not processors and node not in taken:
            lines = _text(folder / "meminfo").splitlines()
            found[node] = 1024 * sum(int(line.split()[-2]) for line in lines if "MemTotal:" in line)
    return {node: size for node, size in found.items() if size > 0}


def gpus(sysfs: pathlib.Path = _SYSFS) -> list[PciDevice]:
    """Returns NVIDIA's GPUs."""
    return [
        _device(folder)
        for folder, code in _pci_devices(sysfs)
        if code >> 16 == _DISPLAY and _number(folder / "vendor") == _NVIDIA
    ]


def cxl_links(sysfs: pathlib.Path = _SYSFS) -> list[PciDevice]:
    """Returns the CXL memory devices: each is a link to memory, or to a switch with a pool."""
    return [_device(folder) for folder, code in _pci_devices(sysfs) if code >> 8 == _CXL_MEMORY]


def dax_devices(sysfs: pathlib.Path = _SYSFS) -> list[DaxDevice]:
    """Returns all dax devices."""
    return [
        DaxDevice(
            name=folder.name,
            size=_number(folder / "size"),
            align=_number(folder / "align"),
            driver=(folder / "driver").resolve().name if (folder / "driver").exists() else "",
            node=_node(folder / "target_node"),
            near=_node(folder / "numa_node"),
            region=folder.resolve().parent.name,
        )
        for folder in sorted((sysfs / "bus/dax/devices").glob("dax*"))
    ]


def nearest(gpu: PciDevice, links: list[PciDevice]) -> tuple[str, list[PciDevice]]:
    """Returns a text about how near the nearest links of a GPU are, and these links.

    Links that share PCI bridges with the GPU are nearer than other links at its socket. If no link
    shares a bridge, and the NUMA node of the GPU or of every link is unknown, no link is nearest.
    """
    shared = [len({*gpu.bridges} & {*link.bridges}) for link in links]
    most = max(shared, default=0)
    if most > 0:
        where = "behind the same PCIe switch" if most > 1 else "at the same PCIe host bridge"
        return where, [link for link, count in zip(links, shared, strict=True) if count == most]
    local = [link for link in links if gpu.node >= 0 and link.node == gpu.node]
    if local:
        return "at the same socket", local
    return "not at its socket", [link for link in links if gpu.node >= 0 and link.node >= 0]


def distance(device: DaxDevice, sysfs: pathlib.Path = _SYSFS) -> str:
    """Returns the NUMA distances from each node with processors to the device's memory, as text."""
    texts = []
    for node, processors, folder in _nodes(sysfs):
        distances = _text(folder / "distance").split()
        if processors and 0 <= device.node < len(distances):
            texts.append(f"{distances[device.node]} from node{node}")
    return ", ".join(texts) or "not known (the memory belongs to no online node)"


def _nodes(sysfs: pathlib.Path) -> list[tuple[int, str, pathlib.Path]]:
    """Returns the numbers of the NUMA nodes, their processors, and their folders."""
    lists = (sysfs / "devices/system/node").glob("node[0-9]*/cpulist")
    return sorted((int(each.parent.name[4:]), _text(each), each.parent) for each in lists)


def _pci_devices(sysfs: pathlib.Path) -> list[tuple[pathlib.Path, int]]:
    """Returns the folders of all PCI devices, and their class codes."""
    folders = sorted((sysfs / "bus/pci/devices").glob("*"))
    codes = ((folder.resolve(), _number(folder / "class")) for folder in folders)
    return [(folder, code) for folder, code in codes if code is not None]


def _device(folder: pathlib.Path) -> PciDevice:
    """Reads a device from its real folder in sysfs, which lies in the folders of its bridges."""
    bridges = itertools.dropwhile(lambda name: not name.startswith("pci"), folder.parts[:-1])
    return PciDevice(folder.name, _node(folder / "numa_node"), tuple(bridges))


def _text(path: pathlib.Path) -> str:
    """Returns the text of a file in sysfs, "" if it cannot be read."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _number(path: pathlib.Path) -> int | None:
    """Returns the number in a file of sysfs, or None if the file has no number."""
    with contextlib.suppress(ValueError):
        return int(_text(path), 0)
    return None


def _node(path: pathlib.Path) -> int:
    """Returns the NUMA node in a file of sysfs, -1 if the file has none."""
    node = _number(path)
    return -1 if node is None else node
