"""Colors, sizes and legends that all figures share. Needs matplotlib."""

import pathlib
from collections.abc import Sequence
from typing import Any

from jax_cxl._sizes import format_size

# Label, color and style of each line. The colors are Okabe and Ito's, which people with color
# blindness can tell apart.
_SYSTEMS = {
    "jax_cxl": ("jax_cxl", "#0072B2", "-"),
    "gloo": ("Gloo", "#E69F00", "-"),
    "endpoint": ("jax_cxl", "#0072B2", "-"),
    "mpi": ("MPI", "#CC79A7", "-"),
    "openmpi": ("Open MPI", "#CC79A7", "-"),
    "mpich": ("MPICH", "#CC79A7", "--"),
    "nccl": ("NCCL", "#009E73", "-"),
    "nccl-shm": ("NCCL, memory of the host", "#009E73", "-"),
    "nccl-socket": ("NCCL, loopback sockets", "#56B4E9", "-"),
    "nccl-nvlink": ("NCCL's choice", "#000000", "-"),
    "nccl-infiniband": ("NCCL, InfiniBand", "#009E73", "--"),
}


def curve(axis: Any, system: str, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    """Draws a curve of a system in the system's color.

    Args:
      axis: axes of matplotlib.
      system: the name of a backend in a results file; or "nccl-infiniband".
      x: abscissas.
      y: ordinates.
      **style: what distinguishes several curves of one system; `label` is appended to the system's
        name.
    """
    label, color, linestyle = _SYSTEMS[system]
    label += style.pop("label", "")
    axis.plot(x, y, **{"color": color, "linestyle": linestyle, "label": label, **style})


def size_ticks(axis: Any, sizes: Sequence[int]) -> None:
    """Marks these sizes in bytes on the abscissa, with labels such as "32 KiB"."""
    axis.set_xscale("log")
    axis.set_xticks(sizes, [size_text(size) for size in sizes], rotation=60)
    axis.minorticks_off()


def size_text(size: int) -> str:
    """Returns "32 KiB" for 32768, and 1000 as "1000 B"."""
    text = format_size(size)
    return f"{text[:-3]} {text[-3:]}" if text.endswith("iB") else f"{text} B"


def legend(figure: Any, axis: Any) -> None:
    """Puts one legend of a panel's curves below all panels, where it covers no curve."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def save(figure: Any, path: pathlib.Path, dpi: int = 100) -> None:
    """Writes a figure, and closes it.

    The file has no date or version, so that the same numbers make the same file.
    """
    from matplotlib import pyplot

    figure.savefig(path, dpi=dpi, metadata={"Software": None})
    pyplot.close(figure)
