"""The report of NCCL and of jax_cxl on the cards of a machine: its text, and what it needs."""

import json
import pathlib

import pytest

from jax_cxl._nccl import library
from jax_cxl._nccl.report import cli, cuda, text, ways


def _row(call, pool, nccl, copies, **row):
    """Returns a row of two sizes. Each time is a median or has a range."""
    ranges = [
        [t if isinstance(t, list) else [t, t, t] for t in times] for times in (pool, nccl, copies)
    ]
    figures = dict(zip(text.WAYS, ranges, strict=True))
    wrong = {way: [0, 0] for way in figures}
    return {"call": call, "bytes": [1 << 20, 256 << 20], "wrong": wrong, **figures, **row}


def _found(*rows, **found):
    cards = [{"name": "NVIDIA GeForce RTX 4090", "capability": "8.9", "memory_gib": 24.0}] * 2
    return {
        "date": "2026-11-29",
        "cards": cards,
        "rounds": 5,
        "failed": {},
        "results": rows,
    } | found


# Two H200s, one round.
_SUM = _row("all_reduce", (58.7, 7099.4), (71.6, 9685.4), (266.1, 7558.5))
_EXCHANGE = _row("alltoall", (42.4, 3651.0), (41.1, 5743.0), (94.1, 12664.2))


def test_text():
    report = text.text(
        _found(_SUM, _EXCHANGE, cpu="AMD EPYC", goes="through a pool", remarks=["A."])
    )
    assert report.startswith("### 2 x NVIDIA GeForce RTX 4090, 2026-11-29\n\n**Use jax_cxl")
    assert (
        "Every element of every result was right. Compared with the better of NCCL's two ways,"
        " jax_cxl is faster in 3 of 4 pairs of operation and size (alltoall of 256 MiB: 1.57,"
        " all_reduce of 1 MiB: 1.22, all_reduce of 256 MiB: 1.06), slower in 1 (alltoall of 1 MiB:"
        " 0.97), and level in the rest."
    ) in report
    lines = report.splitlines()
    assert "| processor | AMD EPYC |" in lines
    assert "| compute capability | 8.9 |" in lines
    assert "| peer access | none |" in lines
    assert lines[-6:] == [
        "|  | 1 MiB | 256 MiB |",
        "| --- | --- | --- |",
        "| all_reduce | 58.7, 71.6, 266: 1.22 | 7,099, 9,685, 7,558: 1.06 |",
        "| alltoall | 42.4, 41.1, 94.1: **0.97** | 3,651, 5,743, 12,664: 1.57 |",
        "",
        "* A.",
    ]


def test_a_difference_within_the_ranges_is_none():
    assert text.judge({"pool": [8, 10, 12], "nccl": [9, 11, 13]}) == "level"
    assert text.judge({"pool": [8, 10, 12], "nccl": [11, 13, 14]}) == "faster"
    assert text.judge({"pool": [8, 10, 12], "nccl": [6, 7, 9], "copies": [50, 50, 50]}) == "slower"


_DECODE = {"call": "decode step: 64 sums", "bytes": [16384]}
_PEERS = [{"name": "NVIDIA H200", "peers": [1]}, {"name": "NVIDIA H200", "peers": [0]}]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (_found(_SUM), "**Use jax_cxl on this machine.**"),
        (_found(_row("all_reduce", (72, 9000), (60, 8000), (90, 8100))), "**Do not use jax_cxl on"),
        (_found(_row("all_reduce", (72, 7000), (60, 8000), (90, 8100))), "**Try jax_cxl with"),
        (_found(_SUM, cards=_PEERS), "**Leave jax_cxl off: the cards have peer access"),
        (_found(_SUM, goes="to NCCL, because"), "**jax_cxl passed all calls on to NCCL"),
        (
            _found(_SUM, models=[_DECODE | {"pool": [[5, 5, 5]], "nccl": [[4, 4, 4]]}]),
            "**Do not use jax_cxl on this machine.** Every element of every result was right."
            " Compared with the better of NCCL's two ways, jax_cxl is faster in 2 of 2 pairs of"
            " operation and size (all_reduce of 1 MiB: 1.22, all_reduce of 256 MiB: 1.06), slower"
            " in 0, and level in the rest. A decode step: 64 sums of 16 KiB takes 5.00 ms, and 4.00"
            " ms with NCCL by kernels.",
        ),
        (
            _found(_SUM | {"wrong": {"pool": [0, 7], "nccl": [0, 0]}}),
            "**Do not use jax_cxl on this machine, and report its wrong results.** jax_cxl gave"
            " WRONG results: 7 elements of all_reduce of 256 MiB. Compared",
        ),
        (
            _found({"call": "all_reduce", "bytes": [4], "wrong": {}}, failed={"pool": "start: no"}),
            "**There is nothing to compare: see what failed.** jax_cxl could not be measured:"
            " start: no",
        ),
    ],
)
def test_the_verdict_follows_from_the_figures(found, says):
    assert text.verdict(found).startswith(says)
    assert text.verdict(found) in text.text(found)


def test_environments(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "path", lambda: tmp_path / "libnccl.so.2")
    monkeypatch.setattr(library, "real_path", lambda: None)
    # As in a program that `run --nccl` has started.
    base = library.environment("all", {"LD_PRELOAD": "a.so", "NCCL_SHM_MEMCPY_MODE": "1"})
    found = ways.environments({**base, "NCCL_SHM_MEMCPY_MODE": "1"})
    assert [each["LD_PRELOAD"] for each in found.values()] == [
        f"{tmp_path}/libnccl.so.2:a.so",
        "a.so",
        "a.so",
    ]
    assert [each["NCCL_P2P_DISABLE"] for each in found.values()] == ["1"] * 3
    assert [each.get("NCCL_SHM_MEMCPY_MODE") for each in found.values()] == [None, None, "3"]
    assert found["pool"]["JAX_CXL_NCCL_HOSTS"] == "all"


def test_says_what_is_missing(monkeypatch, capsys, tmp_path):
    def not_built():
        raise FileNotFoundError("there is no libnccl.so.2: it is built with nvcc")

    def no_driver():
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(library, "path", not_built)
    monkeypatch.setattr(cuda, "count", no_driver)
    monkeypatch.setattr(cli, "_SHM_BYTES", 1 << 60)
    monkeypatch.setenv("JAX_CXL_NCCL_LIBRARY", str(tmp_path / "libnccl.so.2"))
    assert cli.main([]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in said[:3]] == [
        "python -m jax_cxl nccl report: there is no libnccl.so.2: it is built with nvcc",
        "python -m jax_cxl nccl report: CUDA finds no GPU",
        "python -m jax_cxl nccl report: there is no NCCL",
    ]
    assert "use --shm-size=1g" in said[3]
    monkeypatch.setattr(cuda, "count", lambda: 1)
    assert cli.main([]) == 2
    assert "fewer than two GPUs" in capsys.readouterr().err


_REPORTS = pathlib.Path(__file__).parents[2] / "benchmarks/results/reports"


@pytest.mark.parametrize("path", sorted(_REPORTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_reports_have_a_text(path):
    found = json.loads(path.read_text())
    lines = text.text(found).splitlines()
    assert lines[0].startswith(f"### {len(found['cards'])} x ")
    for row in found["results"]:
        assert len(row["bytes"]) == len(row["pool"]) == len(row["wrong"]["pool"])
        assert any(line.startswith(f"| {row['call']} | ") for line in lines)
