"""The pictures of docs/performance.md. Needs matplotlib."""

import pathlib

from jax_cxl._simulate import constants as c
from jax_cxl._simulate import model, nccl, study

_SIZES = tuple(c.KIB << i for i in range(23))


def write(folder: pathlib.Path) -> None:
    """Writes modelled-*.png into `folder`.

    Raises:
      ImportError: matplotlib is not installed; the message says how to get it.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError(
            "the plots need matplotlib: pip install matplotlib, or jax_cxl[examples]"
        ) from None
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    _speed(folder / "modelled-speed.png")
    _hosts(folder / "modelled-hosts.png")


def _speed(path: pathlib.Path) -> None:
    """Bus bandwidth by size, each operation of the paper in its setting."""
    from matplotlib import pyplot

    setting = model.Setting()
    figure, axes = pyplot.subplots(2, 4, figsize=(11, 5), sharex=True, sharey=True)
    for op, axis in zip(model.OPS, axes.flat, strict=True):
        factor = study.bus_factor(op, setting.ranks)

        def rates(times: list[float], factor: float = factor) -> list[float]:
            return [factor * s / t / c.GB for s, t in zip(_SIZES, times, strict=True)]

        axis.plot(_SIZES, rates([study.ours(op, s, setting) for s in _SIZES]), label="jax_cxl")
        axis.plot(_SIZES, rates([study.paper(op, s, setting) for s in _SIZES]), label="paper, All")
        axis.plot(
            _SIZES,
            rates([nccl.seconds(op, s, setting.hosts) for s in _SIZES]),
            label="NCCL, InfiniBand",
            linestyle="--",
        )
        axis.set_title(op)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("bytes (as nccl-tests counts)")
    figure.supylabel("bus bandwidth, GB/s (modelled)")
    figure.suptitle(f"Modelled: {setting.hosts} hosts, {setting.cards} cards")
    _save(figure, path)


def _hosts(path: pathlib.Path) -> None:
    """Time over the number of hosts."""
    from matplotlib import pyplot

    size = 256 * c.MIB
    hosts = (2, 3, 4, 6, 8, 12, 16, 24, 32)
    figure, axes = pyplot.subplots(1, 4, figsize=(11, 3.2), sharex=True, sharey=True)
    for op, axis in zip(
        ("all_gather", "all_reduce", "all_to_all", "broadcast"), axes.flat, strict=True
    ):
        for cards in (6, 24):
            settings = [model.Setting(hosts=n, cards=cards) for n in hosts]
            axis.plot(
                hosts,
                [1e3 * study.ours(op, size, s) for s in settings],
                label=f"jax_cxl, {cards} cards",
            )
        axis.plot(
            hosts,
            [1e3 * study.paper(op, size, model.Setting(hosts=n)) for n in hosts],
            label="paper, All, 6 cards",
        )
        axis.plot(
            hosts,
            [1e3 * nccl.seconds(op, size, n) for n in hosts],
            label="NCCL, InfiniBand",
            linestyle="--",
        )
        axis.set_title(op)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    axes[0].set_ylabel("ms (modelled)")
    figure.supxlabel("hosts; 256 MiB as nccl-tests counts")
    _save(figure, path)


def _save(figure, path: pathlib.Path) -> None:
    figure.tight_layout()
    # No date or version inside: the same numbers make the same file.
    figure.savefig(path, dpi=75, metadata={"Software": None})
    from matplotlib import pyplot

    pyplot.close(figure)
