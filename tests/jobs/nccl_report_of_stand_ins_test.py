"""The commands that measure the cards of a machine, with stand-ins for cards and libraries."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from jax_cxl._job import tuning_table
from jax_cxl._nccl import tune
from jax_cxl._nccl.report import cli, text

_STAND_IN = pathlib.Path(__file__).parents[1] / "helpers/stand_in_gpus.c"

_PROGRAM = """
import pathlib, sys
from jax_cxl._nccl import __main__ as nccl, library, tune
from jax_cxl._nccl.report import cli
folder = pathlib.Path.cwd()
library.path = lambda: folder / "preloaded/libnccl.so.2"
library.real_path = lambda: folder / "libnccl.so.2"
cli.SIZES, cli.ROUNDS = (64 << 10, 1 << 20), 2
tune.SIZES = (64 << 10,)
del tune._VALUES["nccl_flagged_bytes"], tune._VALUES["nccl_send_flagged_bytes"]
sys.exit(nccl.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module", name="stand_ins")
def _stand_ins(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("needs gcc, for stand-ins of CUDA's library and NCCL's")
    folder = tmp_path_factory.mktemp("stand_ins")
    (folder / "preloaded").mkdir()
    command = ["gcc", "-O2", "-shared", "-fPIC", str(_STAND_IN), "-o", str(folder / "libnccl.so.2")]
    subprocess.run(command, check=True)
    for name in ("libcuda.so.1", "preloaded/libnccl.so.2"):
        shutil.copy(folder / "libnccl.so.2", folder / name)
    # Importing PyTorch takes seconds.
    (folder / "torch.py").write_text("raise ImportError\n")
    return folder


def _environment(folder, variables):
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path, **variables}


def _run(folder, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        cwd=folder,
        env=_environment(folder, variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


def _report(folder, **variables):
    done = _run(folder, "report", **variables)
    assert (folder / "nccl-report.md").read_text() + "\n" == done.stdout, done.stderr
    found = json.loads((folder / "nccl-report.json").read_text())
    assert text.text(found) + "\n" == done.stdout
    return done.returncode, found


def test_measures_all_ways(stand_ins):
    status, found = _report(stand_ins, STAND_IN_GOES="through a pool", STAND_IN_CARDS="3")
    assert (status, found["failed"], found["goes"]) == (0, {}, "through a pool")
    assert [row["call"] for row in found["results"]] == [*cli.OPS]
    for row in found["results"]:
        assert row["wrong"] == {way: [0, 0] for way in text.WAYS}
        for way in text.WAYS:
            assert all(0 < least <= median <= most for least, median, most in row[way])
    assert [len(found["cards"]), len(found["links"])] == [3, 4]
    assert (found["nccl"], found["cuda"], found["torch"]) == ("2.28.9", "13.1", "")
    assert found["cards"][0] == {
        "name": "Stand-in",
        "memory_gib": 24.0,
        "capability": "8.9",
        "peers": [],
    }


def test_finds_a_wrong_element(stand_ins):
    status, found = _report(stand_ins, STAND_IN_WRONG="1")
    assert status == 1
    assert text.wrong(found["results"]) == {
        "pool": ["1 elements of all_reduce of 64 KiB", "1 elements of all_reduce of 1 MiB"]
    }


def test_goes_on_without_a_way_that_fails(stand_ins):
    status, found = _report(stand_ins, STAND_IN_DIES="1")
    assert status == 1
    assert found["failed"]["pool"].startswith("check: a process ended.")
    assert {"nccl", "copies"} < found["results"][0].keys()
    assert "pool" not in found["results"][0]


def test_tune_chooses_the_fastest_table(stand_ins):
    before = stand_ins / "before.json"
    before.write_text(json.dumps({"tuning": {"num_slots": 6}}))
    fast = '"nccl_chunk_bytes": 262144'
    variables = {"STAND_IN_FAST": fast, "JAX_CXL_TUNING": str(before)}
    done = _run(stand_ins, "tune", "table.json", "--turns", "3", **variables)
    assert done.returncode == 0, done.stderr
    found = json.loads((stand_ins / "table.json").read_text())
    assert found["tuning"].items() >= {"num_slots": 6, "nccl_chunk_bytes": 262144}.items()
    assert "nccl_chunk_bytes 262144" in done.stdout.splitlines()[-1]
    for table in found["measured"]:
        assert len(table["microseconds"]) in (1, 4)
    # JAX programs and the library read the table, too.
    assert tuning_table.load(str(stand_ins / "table.json")).nccl_chunk_bytes == 262144


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"STAND_IN_WRONG": "1"}, "WRONG results of all_reduce of 65536 bytes with"),
        ({"STAND_IN_DIES": "1"}, "a process ended"),
        ({"STAND_IN_GOES": "to NCCL, because"}, "a communicator goes to NCCL, because"),
        ({"JAX_CXL_TUNING": "none.json"}, "none.json"),
    ],
)
def test_tune_writes_no_table_if_it_cannot_measure(stand_ins, variables, says):
    done = _run(stand_ins, "tune", "none.json", "--turns", "1", **variables)
    assert done.returncode == 1
    assert says in done.stderr
    assert not (stand_ins / "none.json").exists()


def test_a_table_wins_if_no_time_is_much_longer():
    assert tune.choose([[100, 100], [90, 104], [97, 99]], present=0) == 2
    assert tune.choose([[100, 100], [99.5, 99.5]], present=0) == 0
    # The second table is the best so far, and may be too slow in this measurement.
    assert tune.choose([[100, 100], [90, 90], [89.5, 89.5]], present=1) == 1
    assert tune.choose([[100, 100], [90, 104], [95, 100]], present=1) == 2


_DOCTOR = """
from jax_cxl._commands.status import doctor
from jax_cxl._nccl.report import cuda
print(doctor._register().text)
print(*(found.text for found in doctor._peer_access(cuda.count())))
"""


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, ("can be registered", "6 of 6 pairs of GPUs cannot access")),
        ({"STAND_IN_PEERS": "1"}, ("can be registered", "all 3 GPUs can access")),
        ({"STAND_IN_LOCKED": "1"}, ("cannot be registered", "6 of 6 pairs")),
    ],
)
def test_doctor_describes_the_cards(stand_ins, variables, says):
    environment = _environment(stand_ins, {"STAND_IN_CARDS": "3", **variables})
    command = [sys.executable, "-c", _DOCTOR]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for line, expected in zip(done.stdout.splitlines(), says, strict=True):
        assert expected in line, done.stderr
