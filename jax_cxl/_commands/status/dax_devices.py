"""CXL memory as Linux shows it: dax devices, and NUMA nodes without processors."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class DaxDevice:
    """A dax device in sysfs.

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


def devices(sysfs: pathlib.Path = pathlib.Path("/sys")) -> list[DaxDevice]:
    """Returns all dax devices."""
    found = []
    for folder in sorted((sysfs / "bus/dax/devices").glob("dax*")):
        driver = folder / "driver"
        found.append(
            DaxDevice(
                name=folder.name,
                size=number(folder / "size"),
                align=number(folder / "align"),
                driver=driver.resolve().name if driver.exists() else "",
                node=_or(number(folder / "target_node"), -1),
                near=_or(number(folder / "numa_node"), -1),
                region=folder.resolve().parent.name,
            )
        )
    return found


@dataclasses.dataclass(frozen=True)
class MemoryNode:
    """A NUMA node with memory and without processors.

    Attributes:
      number: number of the node.
      size: bytes of its memory.
      dax: names of the dax devices whose memory the kernel has put there (mode system-ram).
    """

    number: int
    size: int
    dax: tuple[str, ...]


def memory_nodes(sysfs: pathlib.Path = pathlib.Path("/sys")) -> list[MemoryNode]:
    """Returns the NUMA nodes that have memory and no processors."""
    owners: dict[int, list[str]] = {}
    for device in devices(sysfs):
        if device.driver == "kmem":
            owners.setdefault(device.node, []).append(device.name)
    found = []
    for folder in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        number = int(folder.name.removeprefix("node"))
        try:
            processors = (folder / "cpulist").read_text().strip()
            lines = (folder / "meminfo").read_text().splitlines()
        except OSError:
            continue
        sizes = [int(line.split()[-2]) for line in lines if "MemTotal:" in line]
        if not processors and sizes and sizes[0] > 0:
            found.append(MemoryNode(number, sizes[0] * 1024, tuple(owners.get(number, ()))))
    return found


def distance(device: DaxDevice, sysfs: pathlib.Path = pathlib.Path("/sys")) -> str:
    """Returns the NUMA distances from each node with processors to the device's memory, as text."""
    texts = []
    for folder in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        try:
            distances = (folder / "distance").read_text().split()
            has_processors = bool((folder / "cpulist").read_text().strip())
        except OSError:
            continue
        if has_processors and 0 <= device.node < len(distances):
            texts.append(f"{distances[device.node]} from {folder.name}")
    return ", ".join(texts) or "not known (the memory belongs to no online node)"


def number(path: pathlib.Path) -> int | None:
    """Returns the number in a file of sysfs, or None if the file has no number."""
    try:
        return int(path.read_text(), 0)
    except (OSError, ValueError):
        return None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
