"""The report of NCCL and of jax_cxl on the cards of a machine, with stand-ins for all of them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from jax_cxl._nccl.report import cli, text

_STAND_IN = pathlib.Path(__file__).parents[1] / "helpers/stand_in_gpus.c"

_PROGRAM = """
import pathlib, sys
from jax_cxl._commands import nccl
from jax_cxl._nccl import library
from jax_cxl._nccl.report import cli
folder = pathlib.Path.cwd()
library.path = lambda: folder / "preloaded/libnccl.so.2"
library.real_path = lambda: folder / "libnccl.so.2"
cli.SIZES, cli.ROUNDS = (64 << 10, 1 << 20), 2
sys.exit(nccl.main(["report"]))
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


def _report(folder, **variables):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=folder,
        env=_environment(folder, variables),
        capture_output=True,
        text=True,
        timeout=120,
    )
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
