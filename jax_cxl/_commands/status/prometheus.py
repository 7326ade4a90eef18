"""The counters of a job in the text format of Prometheus."""

from collections.abc import Iterable, Sequence

from jax_cxl._commands.status import analysis

# Name -> type, help.
_METRICS = {
    "jax_cxl_calls_total": ("counter", "Collectives that the rank has started."),
    "jax_cxl_operand_bytes_total": ("counter", "Bytes of the operands of these collectives."),
    "jax_cxl_wait_seconds_total": (
        "counter",
        "Seconds in which collectives waited for other ranks to come.",
    ),
    "jax_cxl_work_seconds_total": (
        "counter",
        "Seconds in which collectives moved data, after all ranks had joined.",
    ),
    "jax_cxl_errors_total": ("counter", "Collectives that ended with an error."),
    "jax_cxl_heartbeat_age_seconds": ("gauge", "Seconds since the rank's last sign of life."),
    "jax_cxl_gave_up": ("gauge", "1 if the rank has stopped because of an error, else 0."),
}
_OF_OPERATIONS = {
    "jax_cxl_calls_total": "calls",
    "jax_cxl_operand_bytes_total": "bytes",
    "jax_cxl_wait_seconds_total": "seconds_waited",
    "jax_cxl_work_seconds_total": "seconds_worked",
    "jax_cxl_errors_total": "failed",
}


def text(jobs: Sequence[tuple[str, analysis.Job]]) -> str:
    """Returns the counters of all ranks of jobs, given with the names of their pools."""
    lines: list[str] = []
    for metric, (kind, meaning) in _METRICS.items():
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
        for pool, job in jobs:
            for rank in job.ranks:
                lines += _samples(metric, pool, rank)
    return "\n".join(lines) + "\n"


def _samples(metric: str, pool: str, rank: analysis.Rank) -> Iterable[str]:
    record = rank.record
    labels = {"pool": pool, "rank": str(record["rank"]), "host": record["host"]}
    if metric in _OF_OPERATIONS:
        for counted in record["operations"]:
            value = counted[_OF_OPERATIONS[metric]]
            yield f"{metric}{_labels(labels | {'operation': counted['name']})} {value}"
    elif metric == "jax_cxl_gave_up":
        yield f"{metric}{_labels(labels)} {int(record['gave_up'] is not None)}"
    elif record["last_sign_of_life"]:
        yield f"{metric}{_labels(labels)} {rank.seconds_since(record['last_sign_of_life']):.3f}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
