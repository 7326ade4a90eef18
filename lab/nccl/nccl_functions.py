"""Calls NCCL's functions by ctypes: those that only the programs here call."""

import contextlib
import ctypes
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from jax_cxl._nccl.report import nccl

SUMS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "int64": 4,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_UNDEFINED = -(2**31)


class Config(ctypes.Structure):
    """ncclConfig_t as of NCCL 2.21. Newer libraries accept it."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


def config(*, blocking: bool) -> Config:
    """Returns a configuration in which only `blocking` is set."""
    rest = [_UNDEFINED] * 3 + [None, _UNDEFINED]
    return Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22100, int(blocking), *rest)


class Library(nccl.Library):
    """The libnccl.so.2 that the process finds, with more of its functions."""

    def wait(self, comm: ctypes.c_void_p) -> None:
        """Waits until nothing is in progress on a communicator, which may be a nonblocking one."""
        while (error := self.async_error(comm)) == nccl.IN_PROGRESS:
            time.sleep(1e-4)
        if error:
            raise RuntimeError(f"a communicator has error {error}: {self.last_error(comm)}")

    def init_rank(
        self, size: int, unique: bytes, rank: int, *, blocking: bool = True
    ) -> ctypes.c_void_p:
        """Makes a communicator; returns it once it is ready. All ranks call this."""
        comm = ctypes.c_void_p()
        chosen = config(blocking=blocking)
        self.call(
            "ncclCommInitRankConfig",
            ctypes.byref(comm),
            size,
            nccl.UniqueId.from_buffer_copy(unique),
            rank,
            ctypes.byref(chosen),
        )
        self.wait(comm)
        return comm

    def meet(self, rank: int, other: Connection) -> ctypes.c_void_p:
        """Makes the communicator of two ranks, which a pipe connects."""
        unique = self.unique_id() if rank == 0 else other.recv_bytes()
        if rank == 0:
            other.send_bytes(unique)
        return self.init_rank(2, unique, rank)

    def split(
        self, comm: ctypes.c_void_p, color: int, key: int, *, blocking: bool
    ) -> ctypes.c_void_p:
        """Returns a new communicator of the ranks with this color, once it is ready.

        All ranks of `comm` call this.
        """
        part = ctypes.c_void_p()
        chosen = config(blocking=blocking)
        self.call("ncclCommSplit", comm, color, key, ctypes.byref(part), ctypes.byref(chosen))
        self.wait(comm)
        self.wait(part)
        return part

    def shrink(self, comm: ctypes.c_void_p, excluded: Sequence[int]) -> ctypes.c_void_p:
        """Returns a new communicator without the excluded ranks. Only the other ranks call this."""
        part = ctypes.c_void_p()
        chosen = config(blocking=True)
        ranks = (ctypes.c_int * len(excluded))(*excluded)
        self.call(
            "ncclCommShrink",
            *(comm, ranks, len(excluded), ctypes.byref(part), ctypes.byref(chosen), 0),
        )
        return part

    def premultiplied_sum(
        self, factor: int, dtype: str, comm: ctypes.c_void_p | None, *, on_device: bool
    ) -> int:
        """Returns a reduction that multiplies by the value at the address `factor`.

        Args:
          factor: the address, in memory of the device or of the host.
          dtype: dtype of the factor and of the data.
          comm: the communicator to which the reduction belongs.
          on_device: the factor is in memory of the device, and each call reads it there. Otherwise
            it is in memory of the host, and this function reads it.
        """
        made = ctypes.c_int()
        where = (ctypes.byref(made), ctypes.c_void_p(factor))
        self.call("ncclRedOpCreatePreMulSum", *where, TYPES[dtype], int(not on_device), comm)
        return made.value

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Makes NCCL treat the calls inside the context as one group."""
        self.call("ncclGroupStart")
        yield
        self.call("ncclGroupEnd")

    def destroy(self, comm: ctypes.c_void_p) -> None:
        """Ends a communicator. All its ranks call this."""
        self.call("ncclCommFinalize", comm)
        self.wait(comm)
        self.call("ncclCommDestroy", comm)
