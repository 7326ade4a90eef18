"""The comparison of nccl-tests' output."""

import json
import sys

import pytest

from jax_cxl._nccl.report import text
from lab.nccl import nccl_tests_table

# Two H200s: a call that is faster through the pool, and one that is slower.
_OUTPUT = """\
== 2 GPUs pool all_reduce -b 64K -n 5 -w 1 : status 0, wrong 0
           65536         16384     float     sum      -1    14.93    4.39    4.39       0    14.56    4.50    4.50       0
       268435456      67108864     float     sum      -1  7099.37   37.81   37.81       0  6921.14   38.78   38.78       0
== 2 GPUs nccl all_reduce -b 64K -n 5 -w 1 : status 0, wrong 0
           65536         16384     float     sum      -1    19.38    3.38    3.38       0    27.85    2.35    2.35       0
       268435456      67108864     float     sum      -1  9685.41   27.72   27.72       0  9754.45   27.52   27.52       0
== 2 GPUs copies all_reduce -b 64K -n 5 -w 1 : status 0, wrong 0
           65536         16384     float     sum      -1    22.51    2.91    2.91       0    21.93    2.99    2.99       0
       268435456      67108864     float     sum      -1  7558.48   35.51   35.51       0  7526.19   35.67   35.67       0
== 2 GPUs pool alltoall -b 64K -n 5 -w 1 : status 0, wrong 0
         1048576        131072     float    none      -1    42.41   24.73   12.36       0    43.10   24.33   12.16     N/A
== 2 GPUs nccl alltoall -b 64K -n 5 -w 1 : status 0, wrong 0
         1048576        131072     float    none      -1    41.05   25.54   12.77       0    41.11   25.51   12.75     N/A
== 2 GPUs copies alltoall -b 64K -n 5 -w 1 : status 0, wrong 0
         1048576        131072     float    none      -1    94.09   11.14    5.57       0    93.63   11.20    5.60     N/A
"""  # noqa: E501


def test_compares_with_the_better_of_nccls_ways():
    rows, bad = nccl_tests_table.read(_OUTPUT.splitlines())
    assert not bad
    assert text.table(rows).splitlines()[2:] == [
        "| all_reduce | 14.9, 19.4, 22.5: 1.30 |  | 7,099, 9,685, 7,558: 1.06 |",
        "| alltoall |  | 42.4, 41.0, 94.1: **0.97** |  |",
    ]


def test_a_difference_within_the_rounds_is_not_bold():
    other = _OUTPUT.replace("42.41", "40.9")
    rows, _ = nccl_tests_table.read((_OUTPUT + other + other).splitlines())
    (row,) = (row for row in rows if row["call"] == "alltoall")
    assert row["pool"] == [[40.9, 40.9, 42.41]]
    assert "40.9, 41.0, 94.1: 1.00" in text.table(rows)


@pytest.mark.parametrize("change", [("status 0", "status 124"), ("wrong 0", "wrong 3")])
def test_a_failure_is_told(tmp_path, monkeypatch, capsys, change):
    path, found = tmp_path / "out.txt", tmp_path / "found.json"
    path.write_text(_OUTPUT.replace(*change, 1))
    monkeypatch.setattr(sys, "argv", ["table", str(path), "--json", str(found)])
    assert nccl_tests_table.main() == 1
    line = _OUTPUT.splitlines()[0].replace(*change)
    assert f"FAILED: {line}" in capsys.readouterr().out
    assert json.loads(found.read_text())["failed"] == [line]


def test_a_size_that_a_way_lacks_is_left_out():
    lines = _OUTPUT.splitlines()
    rows, _ = nccl_tests_table.read(lines[:5] + lines[6:])
    assert rows[0]["bytes"] == [65536]
