"""Output of a training run: a progress bar, a JSON file, a picture."""

import datetime
import json
import pathlib
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# The color of jax_cxl in all figures.
_COLOR = "#0072B2"

# A curve is a list of [step, value].
Curve = list[list[float]]


class ProgressReport:
    """Shows a progress bar on a terminal, and elsewhere prints a line for each evaluation.

    It shows nothing if it is disabled. It is a context manager: the bar is drawn inside the `with`
    statement.
    """

    def __init__(self, first_step: int, steps: int, enabled: bool):
        self._console = Console(quiet=not enabled, highlight=False, soft_wrap=True)
        self._first_step = first_step
        self._steps = steps
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (enabled and self._console.is_terminal),
        )
        self._task = self._bar.add_task("", total=steps, completed=first_step, figures="")
        self._train = self._held_out = ""

    def __enter__(self) -> "ProgressReport":
        self._start = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        self._console.print(text, markup=False)

    def trained(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Shows the progress of the training."""
        self._train = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, figures=f"{self._train}  {self._held_out}")

    def evaluated(self, step: int, loss: float) -> None:
        """Shows a held-out loss."""
        self._held_out = f"held-out {loss:.4f} nats/byte"
        if self._console.is_terminal:
            self._bar.update(self._task, figures=f"{self._train}  {self._held_out}")
        else:
            self.say(
                f"step {step:5d}/{self._steps}  {self._train}  {self._held_out}  {self._left(step)}"
            )

    def _left(self, step: int) -> str:
        """Estimates the remaining time from the steps of this run."""
        per_step = (time.monotonic() - self._start) / (step - self._first_step)
        seconds = round(per_step * (self._steps - step))
        return f"{datetime.timedelta(seconds=seconds)} left"


def write_json(path: str, figures: dict[str, Any]) -> None:
    """Writes `figures` as JSON: one line per key, so that two files can be compared."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in figures.items())
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def plot(path: str, title: str, train: Curve, held_out: Curve, bigram: float) -> None:
    """Draws the loss over the steps.

    Args:
      path: file of the picture; its suffix gives the format.
      title: title in one line.
      train: loss of the batch of each step.
      held_out: loss on the held-out text.
      bigram: held-out loss of a table of byte pairs, for comparison.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    steps, losses = np.asarray(train).T
    axes.plot(steps, losses, color=_COLOR, linewidth=0.8, alpha=0.4, label="train, each batch")
    steps, losses = np.asarray(held_out).T
    # The last value is in the legend, because curves would cross a label beside its point.
    label = f"held-out, {losses[-1]:.2f} at the end"
    axes.plot(steps, losses, color=_COLOR, marker="o", markersize=4, label=label)
    axes.axhline(bigram, color="gray", linestyle="--", label=f"byte pairs counted: {bigram:.2f}")
    axes.set(title=title, xlabel="step", ylabel="loss (nats per byte)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
