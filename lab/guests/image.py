"""The disk and the kernel of the guests, made from Debian's packages and this Python's packages."""

import dataclasses
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

_HERE = pathlib.Path(__file__).resolve().parent
ROOT = _HERE.parents[1]
# The packages on the guests' disk, besides Debian's smallest set.
_PACKAGES = (
    *("ndctl", "daxctl", "kmod", "iproute2", "procps", "libstdc++6", "libgomp1", "libffi8"),
    *("libssl3", "libsqlite3-0", "libbz2-1.0", "liblzma5", "zlib1g", "libuuid1", "libexpat1"),
    "util-linux",
)
_DISTRIBUTIONS = ("jax", "jaxlib", "optax", "absl-py", "rich", "xxhash")
# Modules that the kernel needs before it has a disk.
_BOOT_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "ext4")
_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "cpio": "cpio",
    "mke2fs": "e2fsprogs",
    "depmod": "kmod",
    "apt-get": "apt",
    "dpkg": "dpkg",
}
_BACKPORTS = "bookworm-backports"


@dataclasses.dataclass(frozen=True)
class Image:
    """What a guest boots.

    Attributes:
      kernel: the kernel.
      initrd: the initial RAM disk, which mounts `disk`.
      disk: a file with an ext4 file system. Guests do not change it.
      qemu: the command that runs QEMU, with the options for its firmware's folders.
    """

    kernel: pathlib.Path
    initrd: pathlib.Path
    disk: pathlib.Path
    qemu: tuple[str, ...]


def missing() -> str:
    """Returns a text with what this machine lacks to make the guests, or "" if it lacks nothing."""
    if os.geteuid() != 0:
        return "needs root (mmdebstrap, chroot)"
    tools = sorted(package for tool, package in _TOOLS.items() if shutil.which(tool) is None)
    return f"needs packages: apt-get install {' '.join(tools)}" if tools else ""


def make(cache: pathlib.Path, cxl: bool) -> Image:
    """Returns the image. Makes those of its files that the cache folder does not have yet."""
    cache.mkdir(parents=True, exist_ok=True)
    unpacked = cache / ("backports" if cxl else "stable")
    if not (unpacked / "done").exists():
        _unpack(unpacked, cxl)
    version = next((unpacked / "lib" / "modules").iterdir()).name
    root = cache / "root"
    if not (cache / "root.done").exists():
        _make_root(cache, root)
    disk, initrd = cache / f"disk-{version}.ext4", cache / f"initrd-{version}.img"
    if not disk.exists():
        _make_disk(unpacked, root, version, disk)
    _make_initrd(unpacked, version, initrd)  # Each time: it has this checkout's init.sh.
    kernel = unpacked / "boot" / f"vmlinuz-{version}"
    if not cxl:
        return Image(kernel, initrd, disk, ("qemu-system-x86_64",))
    share = unpacked / "usr" / "share"
    qemu = (str(unpacked / "usr/bin/qemu-system-x86_64"), "-L", str(share / "qemu"))
    return Image(kernel, initrd, disk, (*qemu, "-L", str(share / "seabios")))


def _run(*command: str | pathlib.Path, **options) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, command))}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def _unpack(target: pathlib.Path, cxl: bool) -> None:
    """Downloads and unpacks the kernel and busybox, and with `cxl` also a newer QEMU."""
    shutil.rmtree(target, ignore_errors=True)
    folder = target / "archives"
    folder.mkdir(parents=True)
    options = ["-o", "APT::Sandbox::User=root"]
    if cxl:
        options += _backports(target)
        _run("apt-get", *options, "update")
    depends = _run("apt-cache", *options, "depends", *_release(cxl), "linux-image-amd64")
    match = re.search(r"Depends: (linux-image-\S+)", depends)
    if match is None:
        raise RuntimeError(f"linux-image-amd64 depends on no kernel: {depends}")
    names = [match[1], "busybox-static"]
    if cxl:
        names += ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"]
    _run("apt-get", *options, "download", *_release(cxl), *names, cwd=folder)
    for archive in sorted(folder.glob("*.deb")):
        _run("dpkg", "-x", archive, target)
    (version,) = os.listdir(target / "lib" / "modules")
    _run("depmod", "-b", target, version)
    (target / "done").touch()


def _release(cxl: bool) -> list[str]:
    return ["-o", f"APT::Default-Release={_BACKPORTS}"] if cxl else []


def _backports(target: pathlib.Path) -> list[str]:
    """Returns options that let apt see backports, without a change to this machine."""
    sources = target / "sources.list"
    mirror = _mirror()
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(
        "".join(
            f"deb [signed-by={keyring}] {mirror} {suite} main\n"
            for suite in ("bookworm", _BACKPORTS)
        )
    )
    for folder in ("lists/partial", "cache/archives/partial"):
        (target / "apt" / folder).mkdir(parents=True)
    return [
        *("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={target}/apt/lists", "-o", f"Dir::Cache={target}/apt/cache"),
    ]


def _mirror() -> str:
    """Returns the mirror that this machine's apt uses."""
    lines = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    return lines.split()[0]


def _suite() -> str:
    release = pathlib.Path("/etc/os-release").read_text()
    match = re.search(r"^VERSION_CODENAME=(\w+)", release, re.MULTILINE)
    return match[1] if match else "bookworm"


def _make_root(cache: pathlib.Path, root: pathlib.Path) -> None:
    """Makes the guests' file system, without the kernel's modules."""
    if root.exists():  # Left by an attempt that was cut off.
        shutil.rmtree(root)
    include = f"--include={','.join(_PACKAGES)}"
    _run("mmdebstrap", "--variant=minbase", include, _suite(), root, _mirror())
    for folder in ("host", "opt/site", "opt/project", "lib/modules"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _copy_python(root)
    for name in sorted(_closure(_DISTRIBUTIONS)):
        _copy_distribution(name, root / "opt" / "site")
    (cache / "root.done").touch()


def _copy_python(root: pathlib.Path) -> None:
    """Copies the Python that runs this script to the same path in the guests' file system."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = pathlib.Path(sys.base_prefix)
    target = root / base.relative_to("/")
    (target / "bin").mkdir(parents=True, exist_ok=True)
    for parent in base.parents:
        (root / parent.relative_to("/")).chmod(0o755)  # For every user, a folder of root's too.
    shutil.copy2(base / "bin" / version, target / "bin" / version)
    left_out = shutil.ignore_patterns("test", "site-packages", "idlelib", "tkinter", "ensurepip")
    shutil.copytree(
        base / "lib" / version, target / "lib" / version, ignore=left_out, dirs_exist_ok=True
    )
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(library, target / "lib" / library.name)
    (root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to(base / "bin" / version)


def _closure(names: tuple[str, ...]) -> set[str]:
    """Returns the names of these distributions and of all that they require, also indirectly."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name.lower() in found:
            continue
        found.add(name.lower())
        plain = (requirement for requirement in requirements if "extra ==" not in requirement)
        waiting += [re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0] for requirement in plain]
    return found


def _copy_distribution(name: str, site: pathlib.Path) -> None:
    for file in importlib.metadata.files(name) or []:
        source = pathlib.Path(str(file.locate()))
        if ".." in file.parts or not source.is_file():
            continue
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, site / file)


def _make_disk(
    unpacked: pathlib.Path, root: pathlib.Path, version: str, disk: pathlib.Path
) -> None:
    modules = root / "lib" / "modules"
    shutil.rmtree(modules, ignore_errors=True)
    shutil.copytree(unpacked / "lib" / "modules", modules)
    new = disk.with_suffix(".new")
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", root, new, "3G")
    new.rename(disk)


def _make_initrd(unpacked: pathlib.Path, version: str, initrd: pathlib.Path) -> None:
    """Makes the RAM disk, which loads the disk's driver and then runs init from the disk."""
    folder = initrd.with_suffix(".folder")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "modules", "proc", "sys", "dev", "disk"):
        (folder / name).mkdir(parents=True)
    shutil.copy(unpacked / "bin" / "busybox", folder / "bin")
    shutil.copy(_HERE / "init.sh", folder / "guest-init")
    (folder / "guest-init").chmod(0o755)
    names: list[str] = []
    for module in _BOOT_MODULES:
        lines = _run("modprobe", "-d", unpacked, "-S", version, "--show-depends", module)
        for path in re.findall(r"insmod (\S+)", lines):
            name = pathlib.Path(path).name.split(".")[0]
            if name in names:
                continue
            names.append(name)
            data = pathlib.Path(path).read_bytes()
            if path.endswith(".xz"):
                data = subprocess.run(
                    ["xz", "-dc"], input=data, capture_output=True, check=True
                ).stdout
            (folder / "modules" / f"{name}.ko").write_bytes(data)
    loads = "\n".join(f"/bin/busybox insmod /modules/{name}.ko" for name in names)
    (folder / "init").write_text(_INIT.format(loads=loads))
    (folder / "init").chmod(0o755)
    with open(initrd, "wb") as file:
        subprocess.run(
            "find . | cpio -o -H newc --quiet | gzip -1",
            shell=True,
            cwd=folder,
            stdout=file,
            check=True,
        )


_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc p /proc
/bin/busybox mount -t sysfs s /sys
/bin/busybox mount -t devtmpfs d /dev
{loads}
n=0
while [ ! -b /dev/vda ] && [ $n -lt 300 ]; do /bin/busybox sleep 0.1; n=$((n+1)); done
/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /disk || exec /bin/busybox sh
/bin/busybox cp /guest-init /disk/guest-init
/bin/busybox umount /proc
/bin/busybox umount /sys
/bin/busybox mount --move /dev /disk/dev
exec /bin/busybox switch_root /disk /guest-init
"""


def project() -> list[tuple[pathlib.Path, str]]:
    """Returns the paths that guests need from this checkout, and their places in /opt/project."""
    core = pathlib.Path(_extension())
    installed = importlib.metadata.distribution("jax_cxl")
    # JAX finds its plugins by entry points in this folder. JAX_CXL_REPLACE_COLLECTIVES needs the
    # plugin jax_cxl.
    information = f"jax_cxl-{installed.version}.dist-info"
    return [
        (pathlib.Path(str(installed.locate_file(information))), information),
        (ROOT / "jax_cxl", "jax_cxl"),
        *((file, f"jax_cxl/{file.name}") for file in core.parent.glob("_*.so")),
        (_HERE / "programs", "programs"),
        (_HERE / "cxl_region.sh", "guests/cxl_region.sh"),
        (ROOT / "examples", "examples"),
        (ROOT / "README.md", "README.md"),
        (ROOT / "docs", "docs"),
    ]


def _extension() -> str:
    from jax_cxl import _core

    return str(_core.__file__)
