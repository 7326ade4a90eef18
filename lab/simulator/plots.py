"""Draws the pictures of docs/performance.md. Needs matplotlib."""

import pathlib

from lab.figures import plotting
from lab.simulator import constants as c, model, nccl, study

_SIZES = tuple(c.KIB << i for i in range(23))
_HOSTS_SHOWN = (2, 4, 8, 16, 32)


def write(folder: pathlib.Path) -> None:
    """Writes modeled-*.png into `folder`.

    Raises:
      ImportError: matplotlib is not installed. The message has the command that installs it.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError(
            "the plots need matplotlib: pip install matplotlib, or jax_cxl[examples]"
        ) from None
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    _speed(folder / "modeled-speed.png")
    _hosts(folder / "modeled-hosts.png")


def _speed(path: pathlib.Path) -> None:
    """Draws the bus bandwidth by size, for each operation, on three hosts."""
    from matplotlib import pyplot

    setting = model.Setting()
    figure, axes = pyplot.subplots(
        2, 4, figsize=(11, 6), sharex=True, sharey=True, layout="constrained"
    )
    for op, axis in zip(model.OPS, axes.flat, strict=True):
        factor = study.bus_factor(op, setting.ranks)

        def rates(times: list[float], factor: float = factor) -> list[float]:
            return [factor * s / t / c.GB for s, t in zip(_SIZES, times, strict=True)]

        ours = rates([study.ours(op, s, setting) for s in _SIZES])
        infiniband = rates([nccl.seconds(op, s, setting.hosts) for s in _SIZES])
        plotting.curve(axis, "jax_cxl", _SIZES, ours)
        plotting.curve(axis, "nccl-infiniband", _SIZES, infiniband)
        axis.set_title(op)
        plotting.size_ticks(axis, _SIZES[::5])
        axis.grid(alpha=0.3)
    plotting.legend(figure, axes[0][0])
    figure.supylabel("bus bandwidth, GB/s (modeled)")
    figure.suptitle(
        f"Modeled: {setting.hosts} hosts, {setting.cards} cards; sizes as nccl-tests counts them"
    )
    plotting.save(figure, path, dpi=75)


def _hosts(path: pathlib.Path) -> None:
    """Draws the time by the number of hosts."""
    from matplotlib import pyplot

    size = 256 * c.MIB
    hosts = (2, 3, 4, 6, 8, 12, 16, 24, 32)
    figure, axes = pyplot.subplots(
        1, 4, figsize=(11, 3.6), sharex=True, sharey=True, layout="constrained"
    )
    for op, axis in zip(
        ("all_gather", "all_reduce", "all_to_all", "broadcast"), axes.flat, strict=True
    ):
        for cards, linestyle in ((6, "-"), (24, ":")):
            settings = [model.Setting(hosts=n, cards=cards) for n in hosts]
            times = [1e3 * study.ours(op, size, s) for s in settings]
            label = f", {cards} cards"
            plotting.curve(axis, "jax_cxl", hosts, times, linestyle=linestyle, label=label)
        infiniband = [1e3 * nccl.seconds(op, size, n) for n in hosts]
        plotting.curve(axis, "nccl-infiniband", hosts, infiniband)
        axis.set_title(op)
        axis.set_xscale("log")
        axis.set_xticks(_HOSTS_SHOWN, [str(n) for n in _HOSTS_SHOWN])
        axis.minorticks_off()
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    plotting.legend(figure, axes[0])
    axes[0].set_ylabel("ms (modeled)")
    figure.suptitle("Modeled: 256 MiB as nccl-tests counts them, by number of hosts")
    plotting.save(figure, path, dpi=75)
