"""The URI that names a pool: what `JAX_CXL_POOL` and `jax_cxl.initialize` take.

    shm:NAME?size=1GiB&devices=6&coherence=flush     a file in /dev/shm
    file:/path,/path2?size=1GiB&offset=4KiB          files, one or more
    dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB          CXL memory, one or more devices

`size` and `offset` apply to each path. `devices` splits each path into that many parts, as if each
were a device of its own. `coherence` names how stores reach the other hosts: `coherent` (the
default of shm and file), `uncached`, or `flush` (that of dax). A job whose processes run under
several kernels has to name the coherence, even if it is `coherent`. `gpu_writes=memory`, with
`flush`, means that a GPU's writes do not stay in a cache of its host (DDIO is off, or the writes do
not allocate). The host then need not write them back. `keep=on-failure`, for shm, keeps the pool of
a failed job for `python -m jax_cxl status`.
"""

import dataclasses
import re
from typing import Any, NoReturn

from jax_cxl import _core, _sizes, errors
from jax_cxl._job.pool import media

_MAX_DEVICES = 64  # As in cc/pool/layout/layout.h.

_SHM_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# The values that an option may have.
_VALUES = {
    "coherence": ("coherent", "uncached", "flush"),
    "gpu_writes": ("memory",),
    "keep": ("on-failure",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """Where a pool lies, and how it is used.

    Attributes:
      kind: a key of `media.MEDIA`.
      paths: one path for each pool device. For shm, one name, or none: then the runtime makes a
        name.
      bytes: size of each path. 0 means all of a dax device, all of an existing file, and
        `automatic_bytes` for a new file or a pool in /dev/shm.
      devices_per_path: how many equal parts each path is split into.
      offset: where the pool starts in each path, in bytes.
      coherence: "coherent", "uncached" or "flush".
      gpu_writes_memory: whether writes of GPUs reach the memory without a write-back.
      keep: whether the pool stays in /dev/shm when the job fails.
      coherence_given: whether the URI names the coherence.
      uri: the URI as it was given, for messages. Pools with different URIs may be equal.
    """

    kind: str = "shm"
    paths: tuple[str, ...] = ()
    bytes: int = 0
    devices_per_path: int = 1
    offset: int = 0
    coherence: str = "coherent"
    gpu_writes_memory: bool = False
    keep: bool = False
    coherence_given: bool = False
    uri: str = dataclasses.field(default="shm:", compare=False)

    @property
    def medium(self) -> media.Medium:
        """What kind of memory it is."""
        return media.MEDIA[self.kind]

    def sized(self, world_size: int, rank_bytes: int = _core.AUTOMATIC_RANK_BYTES) -> "PoolSpec":
        """Returns the spec for this number of ranks: a pool in /dev/shm gets its automatic size."""
        if not self.medium.in_dev_shm or self.bytes:
            return self
        size = automatic_bytes(world_size, self.devices_per_path, rank_bytes)
        return dataclasses.replace(self, bytes=size)

    def for_core(self) -> dict[str, Any]:
        """Returns the fields that `PoolSpec` of cc/pool/pool.h has."""
        names = ("kind", "paths", "bytes", "devices_per_path", "offset", "coherence")
        return {name: getattr(self, name) for name in names}


def automatic_bytes(
    world_size: int, devices: int = 1, rank_bytes: int = _core.AUTOMATIC_RANK_BYTES
) -> int:
    """Returns the size of a pool of one path, if the URI gives no size.

    The pool has 31 MiB (or `rank_bytes`) for each rank, and the control pages with the flight
    recorders.
    """
    return _core.automatic_path_bytes(
        world_size, num_paths=1, devices_per_path=devices, rank_bytes=rank_bytes
    )


def parse(uri: str | None) -> PoolSpec:
    """Reads a pool URI.

    Args:
      uri: as in the module's docstring; None or "" means a pool in /dev/shm.

    Returns:
      The description of the pool. `PoolSpec.sized` adds the size that depends on the job.

    Raises:
      InvalidPoolError: the URI is wrong. The message names the error and shows a correct URI.
    """
    uri = uri or "shm:"
    if "\0" in uri:
        _fail(uri, "it has a zero byte")
    kind, colon, rest = uri.partition(":")
    if not colon or kind not in media.MEDIA:
        *others, last = (f"{each}:" for each in media.MEDIA)
        _fail(uri, f"it starts with {kind!r}, not with {', '.join(others)} or {last}")
    place, question, query = rest.partition("?")
    medium = media.MEDIA[kind]
    options = _options(uri, medium, query) if question else {}
    coherence = options.get("coherence", medium.coherence)
    if "gpu_writes" in options and coherence != "flush":
        problem = (
            f"gpu_writes=memory says that no write-back is needed, and with coherence={coherence}"
            " there is none: leave it out, or write coherence=flush"
        )
        _fail(uri, problem)
    devices = options.get("devices", "1")
    if devices not in map(str, range(1, _MAX_DEVICES + 1)):
        _fail(uri, f"devices={devices!r} is not a number from 1 to {_MAX_DEVICES}")
    return PoolSpec(
        kind=kind,
        paths=_paths(uri, medium, place),
        bytes=_size(uri, options, "size"),
        devices_per_path=int(devices),
        offset=_size(uri, options, "offset"),
        coherence=coherence,
        gpu_writes_memory="gpu_writes" in options,
        keep="keep" in options,
        coherence_given="coherence" in options,
        uri=uri,
    )


def _fail(uri: str, problem: str) -> NoReturn:
    medium = media.MEDIA.get(uri.partition(":")[0])
    examples = [each.example for each in ([medium] if medium else media.MEDIA.values())]
    raise errors.InvalidPoolError(
        f"pool URI {uri!r}: {problem}; write for example {' or '.join(examples)}"
    )


def _options(uri: str, medium: media.Medium, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for option in query.split("&"):
        key, _, value = option.partition("=")
        if key not in medium.options:
            _fail(uri, f"{key!r} is not an option; the options are {', '.join(medium.options)}")
        if not value:
            _fail(uri, f"option {key!r} has no value")
        if key in options:
            _fail(uri, f"option {key!r} is given twice")
        if key in _VALUES and value not in _VALUES[key]:
            _fail(uri, f"{key}={value!r} is not {' or '.join(_VALUES[key])}")
        options[key] = value
    return options


def _paths(uri: str, medium: media.Medium, place: str) -> tuple[str, ...]:
    if medium.in_dev_shm:
        if place and not _SHM_NAME.fullmatch(place):
            _fail(uri, f"name {place!r} must be 1 to 64 letters, digits, '.', '_' or '-'")
        return (place,) if place else ()
    paths = tuple(place.split(","))
    for path in paths:
        # A relative path would depend on the folder in which each process was started.
        if not path.startswith("/"):
            _fail(uri, f"path {path!r} does not start with '/'")
        if paths.count(path) > 1:
            _fail(uri, f"path {path!r} is named twice")
    return paths


def _size(uri: str, options: dict[str, str], key: str) -> int:
    text = options.get(key, "0")
    try:
        size = _sizes.parse(text, least=0)
    except ValueError as error:
        _fail(uri, f"{key}={error}")
    if size >= 1 << 62:
        _fail(uri, f"{key}={text!r} is larger than any memory")
    return size
