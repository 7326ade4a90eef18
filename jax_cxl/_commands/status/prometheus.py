"""The counters of a job in the text format of Prometheus."""

from collections.abc import Iterable, Sequence

from jax_cxl._commands.status import analysis

# For each metric: its name; its field in the record of an operation, or "" for a gauge of a rank;
# and its help text.
_METRICS = (
    ("calls_total", "calls", "Collectives that the rank has started."),
    ("operand_bytes_total", "bytes", "Bytes of the operands of these collectives."),
    (
        "wait_seconds_total",
        "seconds_waited",
        "Seconds in which collectives waited for other ranks to come.",
    ),
    (
        "work_seconds_total",
        "seconds_worked",
        "Seconds in which collectives moved data, after all ranks had joined.",
    ),
    ("errors_total", "failed", "Collectives that ended with an error."),
    ("heartbeat_age_seconds", "", "Seconds since the rank's last sign of life."),
    ("gave_up", "", "1 if the rank has stopped because of an error, else 0."),
)


def text(jobs: Sequence[tuple[str, analysis.Job]]) -> str:
    """Returns the counters of all ranks. `jobs` has pairs of a pool's name and the pool's job."""
    lines: list[str] = []
    for name, field, meaning in _METRICS:
        metric = f"jax_cxl_{name}"
        lines.append(f"# HELP {metric} {meaning}")
        lines.append(f"# TYPE {metric} {'counter' if field else 'gauge'}")
        for pool, job in jobs:
            for rank in job.ranks:
                labels = {"pool": pool, "rank": str(rank.number), "host": rank.record["host"]}
                for more, value in _samples(name, field, rank):
                    lines.append(f"{metric}{_labels(labels | more)} {value}")
    return "\n".join(lines) + "\n"


def _samples(name: str, field: str, rank: analysis.Rank) -> Iterable[tuple[dict[str, str], object]]:
    """Yields a rank's values of a metric, each with its own labels."""
    record = rank.record
    if field:
        for counted in record["operations"]:
            yield {"operation": counted["name"]}, counted[field]
    elif name == "gave_up":
        yield {}, int(record["gave_up"] is not None)
    elif record["last_sign_of_life"]:
        yield {}, f"{rank.seconds_since(record['last_sign_of_life']):.3f}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
