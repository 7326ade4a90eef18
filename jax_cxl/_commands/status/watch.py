"""The live screen of `python -m jax_cxl status --watch`. Needs rich."""

import os
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jax_cxl import _text, errors
from jax_cxl._commands.status import analysis, pools
from jax_cxl._job import lateness

_MINUTE = 60.0
_COLUMNS = ("rank", "pid", "host", "state", "call", "since", "waits for", "MiB/s", "in collectives")
_COLORS = {"gone": "red", "stopped": "yellow"}


def show(found: Sequence[pools.Found], interval: float) -> int:
    """Draws the jobs until all of them have ended, or the user interrupts the command.

    Args:
      found: the pools of the jobs.
      interval: seconds between two drawings.

    Returns:
      The exit status: 0, or 2 if there is no job.
    """
    console = Console()
    if not found:
        console.print("status: no job found")
        return 2
    screens = [Screen(pool.name) for pool in found]
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                drawn = []
                for pool, screen in zip(found, screens, strict=True):
                    try:
                        job = analysis.watch(pool.read)
                    except (OSError, errors.CxlError):
                        continue  # The job has ended.
                    drawn.append(screen.draw(job, time.time()))
                if not drawn:
                    return 0
                live.update(Group(*drawn), refresh=True)
                time.sleep(max(interval, 0.1))
    except KeyboardInterrupt:
        return 0


class Screen:
    """The screen of a job, with rates since the previous drawing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: dict[int, tuple[float, float, float]] = {}

    def draw(self, job: analysis.Job, now: float) -> Group:
        """Returns the drawing of a job at a given time, in seconds since 1970."""
        script = next(filter(None, (script_of(rank) for rank in job.ranks)), "")
        title = f"{script}  {self._name}" if script else self._name
        table = Table(*_COLUMNS, title=title, expand=True)
        for rank in job.ranks:
            table.add_row(*self._row(rank, now), style=_COLORS.get(rank.state, ""))
        style = "red" if job.culprits else ""
        lines = [Text(line, style=style) for line in analysis.verdicts(job)]
        records = [rank.record for rank in job.ranks]
        late = lateness.slowest(lateness.of_ranks(records, since=now - _MINUTE))
        if late is not None:
            lines.append(Text(f"slowest in the last minute: {late.sentence()}"))
        return Group(table, *lines)

    def _row(self, rank: analysis.Rank, now: float) -> tuple[str, ...]:
        rate, share = self._rates(rank, now)
        return (
            *(str(rank.number), str(rank.record["pid"]), rank.record["host"], rank.state),
            *(*rank.progress(), ", ".join(map(str, rank.waits_for)), rate, share),
        )

    def _rates(self, rank: analysis.Rank, now: float) -> tuple[str, str]:
        """Returns the byte rate, and the share of time in collectives, since the last drawing."""
        record = rank.record
        moved = float(sum(each["bytes"] for each in record["operations"]))
        spent = sum(e["seconds_waited"] + e["seconds_worked"] for e in record["operations"])
        # The statistics lack the calls that are under way, so add the time of these calls so far.
        unfinished = (call for call in record["calls"] if not call["finished"])
        spent += sum(rank.seconds_since(call["submitted"]) for call in unfinished)
        before = self._before.get(record["rank"])
        self._before[record["rank"]] = now, moved, spent
        if before is None or now <= before[0]:
            return "", ""
        seconds = now - before[0]
        share = min(max((spent - before[2]) / seconds, 0.0), 1.0)
        return f"{(moved - before[1]) / seconds / 2**20:.1f}", f"{share:.0%}"


def script_of(rank: analysis.Rank) -> str:
    """Returns the name of the script that a rank of this host runs, "" if it is not known."""
    if rank.state not in ("running", "stopped"):
        return ""
    try:
        with open(f"/proc/{rank.record['pid']}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return ""
    # Under the launcher, the command line is `python -m jax_cxl._commands.launch.rank PARENT FD
    # BOARD KIND NAME ...`, otherwise `python [-X ...] NAME ...`.
    if "jax_cxl._commands.launch.rank" in words:
        words = words[words.index("jax_cxl._commands.launch.rank") + 5 :]
    else:
        words = [word for word in words[1:] if not word.startswith("-")]
    return _text.printable(os.path.basename(words[0])) if words else ""
