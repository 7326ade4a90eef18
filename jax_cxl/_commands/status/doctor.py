"""The command line of `python -m jax_cxl doctor`."""

import argparse
import ctypes
import importlib.metadata
import mmap
import os
import pathlib
import resource
import tempfile
from collections.abc import Iterator, Sequence

from jax_cxl._commands import option_types
from jax_cxl._commands.status import bug_report, hardware, hosts_check, memory_check
from jax_cxl._commands.status.finding import Finding, note, ok, problem
from jax_cxl._job import configuration
from jax_cxl._job.launched import entry_point
from jax_cxl._job.pool import pool_uri
from jax_cxl._nccl.report import cuda

_DESCRIPTION = """\
Checks whether this machine can run jax_cxl, and gives advice if it cannot. Ends with the text of a
bug report: versions, machine, pool, GPUs and settings."""

# The oldest version of JAX with which the tests run.
_OLDEST_JAX = (0, 10, 2)
_MIB = 1 << 20


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 1 if there is a problem, else 0."""
    parser = option_types.command("doctor", _DESCRIPTION)
    option_types.add_number(parser, "--ranks", 1, "ranks on this machine", 2)
    parser.add_argument(
        "--device",
        metavar="URI",
        help="measure the memory of a pool instead, such as"
        " dax:/dev/dax0.0?offset=2MiB&size=64MiB; it is OVERWRITTEN, unless a job uses it",
    )
    parser.add_argument(
        "--with",
        dest="partner",
        metavar="HOST:PORT",
        help="check --device between two hosts: run it on one host with --with :PORT, and on the"
        " other host with --with HOST:PORT, the first host's name",
    )
    options = parser.parse_args(arguments)
    if options.partner is not None and options.device is None:
        parser.error("--with needs --device")
    findings = []
    try:
        for finding in _findings(options):
            print(f"{finding.level:8}{finding.text}", flush=True)
            findings.append(finding)
    except ValueError as error:
        parser.error(str(error))
    if options.device is None:
        print("\nFor a bug report, copy the rest (check first that nothing in it is secret):\n")
        print("\n".join(bug_report.lines(findings, os.environ)))
    return int(any(finding.level == "problem" for finding in findings))


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    if options.partner is not None:
        yield from hosts_check.check_between_hosts(options.device, options.partner)
    elif options.device is not None:
        yield from memory_check.check_device(options.device)
    else:
        yield from check_jax()
        yield from check_settings()
        yield from check_pool(options.ranks)
        yield from check_memlock(options.ranks)
        yield from check_flush()
        yield from check_dax()
        yield from check_gpu()
        yield from check_processes(options.ranks)


def check_jax() -> Iterator[Finding]:
    """The versions of JAX and its library."""
    for package in ("jax", "jaxlib"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield problem(f"{package} is not installed: pip install 'jax>=0.10.2'")
            continue
        numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
        if numbers < _OLDEST_JAX:
            yield problem(f"{package} {version} is too old: pip install 'jax>=0.10.2'")
        else:
            yield ok(f"{package} {version}")


def check_settings() -> Iterator[Finding]:
    """Environment variables that jax_cxl does not know, or that have no effect here."""
    yield from map(problem, configuration.unknown_variables(os.environ))
    if entry_point.wanted() and not entry_point.is_installed():
        yield problem(entry_point.absent())


def check_pool(ranks: int) -> Iterator[Finding]:
    """The pool of `JAX_CXL_POOL`, or the default one."""
    uri = os.environ.get("JAX_CXL_POOL")
    name = f"JAX_CXL_POOL={uri}" if uri else f"the default pool of {ranks} ranks"
    try:
        spec = pool_uri.parse(uri).sized(ranks)
        configuration.from_environment()
    except ValueError as error:
        yield problem(str(error))
        return
    if spec.in_dev_shm:
        yield _space("/dev/shm", spec.offset + spec.bytes, name)
        return
    for path in spec.paths:
        yield _path(path, spec, name, ranks)


def _space(folder: str, needed: int, name: str) -> Finding:
    """Compares the size of a pool with the free space of a file system, where it makes a file."""
    try:
        space = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return problem(
            f"{folder}: this user cannot make a file there ({error.strerror}), and {name} is one:"
            " make it writable (chmod 1777), or put the pool into a file elsewhere"
            " (JAX_CXL_POOL=file:/path?size=...)"
        )
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    text = (
        f"{folder}: {free / _MIB:.0f} of {total / _MIB:.0f} MiB are free,"
        f" and {name} takes {needed / _MIB:.0f} MiB"
    )
    if free >= needed or total == 0:  # A tmpfs without a limit has no blocks.
        return ok(text)
    if folder != "/dev/shm":
        return problem(f"{text}: choose a smaller size=, or another folder")
    return problem(
        f"{text}: run python -m jax_cxl clean, enlarge it (mount -o remount,size=..., in a"
        " container --shm-size=...), or choose a smaller pool (JAX_CXL_POOL=shm:?size=...)"
    )


def _path(path: str, spec: pool_uri.PoolSpec, name: str, ranks: int) -> Finding:
    """Checks a path of a pool in a file or on a dax device."""
    folder = os.path.dirname(path)
    if spec.is_device and not os.path.exists(path):
        return problem(f"{name}: there is no {path}; the dax devices are listed below")
    if not os.path.exists(path):
        if not os.path.isdir(folder):
            return problem(f"{name}: there is no folder {folder}: create it")
        if not os.access(folder, os.W_OK):
            return problem(f"{name}: you cannot write to {folder}: ask for write access")
        new = spec.bytes or pool_uri.automatic_bytes(ranks, spec.devices_per_path)
        together = [other for other in spec.paths if os.path.dirname(other) == folder]
        missing = len(together) - sum(map(os.path.exists, together))
        return _space(folder, missing * (spec.offset + new), name)
    if not os.access(path, os.R_OK | os.W_OK):
        return problem(f"{name}: you cannot read and write {path}: ask for access")
    devices = {f"/dev/{device.name}": device.size for device in hardware.dax_devices()}
    size = devices.get(path) if spec.is_device else os.stat(path).st_size
    if size is not None and size < spec.offset + spec.bytes:
        return problem(
            f"{name}: {path} has {size / _MIB:.0f} MiB, which is less than offset and size"
            f" together, {(spec.offset + spec.bytes) / _MIB:.0f} MiB"
        )
    return ok(f"{name}: {path} can be opened")


def check_memlock(ranks: int) -> Iterator[Finding]:
    """The limit on locked memory: GPUs pin the pool."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    needed = pool_uri.automatic_bytes(ranks)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        yield ok("memlock: enough")
    else:
        yield note(
            f"memlock: {limit / 1024:.0f} KiB; pinning a pool for GPUs may fail:"
            " ulimit -l unlimited, in a container --ulimit memlock=-1"
        )


def check_flush() -> Iterator[Finding]:
    """The instructions of the processor that flush cache lines."""
    flags = hardware.cpuinfo().get("flags", "").split()
    found = [name for name in ("clwb", "clflushopt", "clflush") if name in flags]
    if found:
        yield ok(f"cache flushes: {', '.join(found)} (coherence=flush uses {found[0]})")
    else:
        yield note("cache flushes: none, so this machine cannot use coherence=flush")


def check_dax(sysfs: pathlib.Path = pathlib.Path("/sys")) -> Iterator[Finding]:
    """CXL memory as devdax, and as NUMA nodes, which jax_cxl cannot use."""
    found = hardware.dax_devices(sysfs)
    if not found:
        yield note(
            "dax: no device, so no CXL memory as devdax (cxl list -BDMRu and daxctl list show what"
            " there is; cxl create-region and daxctl reconfigure-device --mode=devdax make one)"
        )
    for device in found:
        path = f"/dev/{device.name}"
        if device.size is None or device.align is None:
            yield note(f"dax: sysfs does not have the size of {device.name}")
            continue
        text = f"dax: {path}, {device.size / _MIB:.0f} MiB, alignment {device.align / _MIB:g} MiB"
        if device.driver == "kmem":
            yield problem(
                f"{text}: the kernel uses it as memory of NUMA node {device.node} (mode"
                " system-ram), where other hosts would destroy its data. As root: daxctl"
                f" offline-memory {device.name} && daxctl reconfigure-device --mode=devdax --force"
                f" {device.name}"
            )
        elif not os.path.exists(path):
            yield note(f"{text}: there is no such file (daxctl list shows its mode)")
        elif os.access(path, os.R_OK | os.W_OK):
            yield ok(text)
        else:
            yield problem(f"{text}: you cannot open it: ask for access to {path}")
    for node, size in hardware.memory_nodes(sysfs).items():
        yield note(
            f"dax: NUMA node {node} has {size / _MIB:.0f} MiB and no processors. If"
            " that is CXL memory, the kernel took it at boot: boot without efi=nosoftreserve, and"
            " with memhp_default_state=offline; then daxctl reconfigure-device --mode=devdax"
            " --force daxX.Y"
        )


def check_gpu() -> Iterator[Finding]:
    """The NVIDIA driver, and whether it can pin memory of /dev/shm."""
    version = pathlib.Path("/proc/driver/nvidia/version")
    if not version.exists():
        yield note("GPU: no NVIDIA driver, so ranks run on CPUs")
        return
    yield ok(f"GPU: {version.read_text().splitlines()[0].strip()}")
    try:
        cards = cuda.count()
        yield _register()
        yield from _peer_access(cards)
    except OSError:
        yield problem("GPU: libcuda.so.1 is missing: install the driver's libraries")
    except RuntimeError as error:
        yield problem(f"GPU: CUDA does not start ({error}): see nvidia-smi")


def _peer_access(cards: int) -> Iterator[Finding]:
    """Whether the GPUs can access each other's memory."""
    pairs = cards * (cards - 1)
    without = pairs - sum(len(cuda.describe(card, cards)["peers"]) for card in range(cards))
    if without:
        yield note(
            f"GPU: {without} of {pairs} pairs of GPUs cannot access each other's memory, so NCCL"
            " goes through host memory: python -m jax_cxl nccl report measures a faster way"
        )
    elif pairs:
        yield ok(f"GPU: all {cards} GPUs can access each other's memory")


def _register() -> Finding:
    """Tries to pin a page of shared memory."""
    cuda.Card(0)
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:  # Shared, as files in /dev/shm are.
        view = (ctypes.c_char * mmap.PAGESIZE).from_buffer(memory)
        address = ctypes.c_void_p(ctypes.addressof(view))
        try:
            cuda.call("cuMemHostRegister_v2", address, ctypes.c_size_t(mmap.PAGESIZE), 0)
            cuda.call("cuMemHostUnregister", address)
        except RuntimeError as error:
            return problem(
                f"GPU: shared memory cannot be registered with CUDA ({error}): raise memlock"
                " (ulimit -l unlimited)"
            )
        finally:
            del view
    return ok("GPU: shared memory can be registered with CUDA")


def check_processes(ranks: int) -> Iterator[Finding]:
    """Whether this process learns at once that another process has ended."""
    try:
        os.close(os.pidfd_open(os.getppid() or os.getpid()))
    except OSError as error:
        yield note(
            f"processes: pidfd_open fails ({error.strerror}); the end of a rank is noticed by its"
            " heartbeat, after JAX_CXL_HEARTBEAT_TIMEOUT"
        )
    else:
        yield ok("processes: the end of a rank on this host is noticed at once")
    cores = len(os.sched_getaffinity(0))
    if cores < ranks:
        yield note(f"processes: {ranks} ranks share {cores} cores")
