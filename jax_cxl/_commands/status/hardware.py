"""The processor, the dax devices and the NUMA nodes of this host, as Linux shows them."""

import contextlib
import dataclasses
import pathlib

_SYSFS = pathlib.Path("/sys")
_CPUINFO = pathlib.Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class DaxDevice:
    """A dax device.

    Attributes:
      driver: "device_dax" (mode devdax: /dev/dax0.0), "kmem" (mode system-ram), or "".
    """

    name: str
    size: int | None
    align: int | None
    driver: str
    node: int | None


def cpuinfo() -> dict[str, str]:
    """Returns what /proc/cpuinfo reports about the first processor."""
    first, _, _ = _text(_CPUINFO).partition("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def memory_nodes(sysfs: pathlib.Path = _SYSFS) -> dict[int, int]:
    """Returns the sizes of the NUMA nodes that have neither processors nor a dax device."""
    taken = {device.node for device in dax_devices(sysfs) if device.driver == "kmem"}
    found = {}
    for processors in (sysfs / "devices/system/node").glob("node[0-9]*/cpulist"):
        node = int(processors.parent.name[4:])
        if not _text(processors) and node not in taken:
            lines = _text(processors.with_name("meminfo")).splitlines()
            found[node] = 1024 * sum(int(line.split()[-2]) for line in lines if "MemTotal:" in line)
    return {node: size for node, size in sorted(found.items()) if size > 0}


def dax_devices(sysfs: pathlib.Path = _SYSFS) -> list[DaxDevice]:
    """Returns all dax devices."""
    return [
        DaxDevice(
            name=folder.name,
            size=_number(folder / "size"),
            align=_number(folder / "align"),
            driver=(folder / "driver").resolve().name if (folder / "driver").exists() else "",
            node=_number(folder / "target_node"),
        )
        for folder in sorted((sysfs / "bus/dax/devices").glob("dax*"))
    ]


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
