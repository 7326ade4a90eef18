"""The library with NCCL's interface, on machines without GPUs."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from jax_cxl._commands.launch import cli as launch, run_program
from jax_cxl._nccl import __main__ as cli, library

_SOURCES = pathlib.Path(__file__).parents[2] / "cc/nccl_library"
_EXPORTED = r"^JAX_CXL_NCCL_(?:API\([^,]*,|FUNCTION\()\s*(\w+)"


def _is_built() -> bool:
    try:
        return library.path().exists()
    except FileNotFoundError:
        return False


needs_library = pytest.mark.skipif(
    not _is_built(),
    reason="no libnccl.so.2 beside jax_cxl: pip builds it where nvcc is, Bazel does not",
)

# Calls functions of the preloaded library, and prints their results.
_PROGRAM = """
import ctypes, json
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetLastError.restype = ctypes.c_char_p
nccl.ncclGetLastError.argtypes = (ctypes.c_void_p,)
class Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)
nccl.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int)
unique, version, comm, memory = Id(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
said = {
    "id": nccl.ncclGetUniqueId(ctypes.byref(unique)),
    "version": nccl.ncclGetVersion(ctypes.byref(version)),
    "number": version.value,
    "init": nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, 0),
    "init_error": nccl.ncclGetLastError(None).decode(),
    "bad_rank": nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, 2),
    "end": nccl.ncclGroupEnd(),
    "forwarded": nccl.ncclMemAlloc(ctypes.byref(memory), 8),
    "forwarded_error": nccl.ncclGetLastError(None).decode(),
}
print(json.dumps(said))
"""


def _call(**variables: str) -> dict[str, object]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("JAX_CXL_")
    }
    environment |= {"LD_PRELOAD": str(library.path())} | variables
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jax_cxl", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_library
def test_run_sets_the_environment_of_a_program(tmp_path: pathlib.Path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\n"
        "print(os.environ['LD_PRELOAD'], os.environ['JAX_CXL_NCCL_HOSTS'], *sys.argv[1:])\n"
    )
    done = _run("--nccl", "--hosts=processes", str(script), "--steps=3")
    assert done.stdout.split() == [str(library.path()), "processes", "--steps=3"], done.stderr
    assert done.returncode == 0


@needs_library
def test_the_command_of_the_library_alone():
    command = [sys.executable, "-m", "jax_cxl._nccl", "run", "--hosts=processes", "sh", "-c"]
    done = subprocess.run(
        [*command, "echo $JAX_CXL_NCCL_HOSTS $LD_PRELOAD"], capture_output=True, text=True
    )
    assert done.stdout.split() == ["processes", str(library.path())], done.stderr


@needs_library
@pytest.mark.parametrize(
    ("pool", "hosts"),
    [("", "all"), ("dax:/dev/dax0.0", "machines")],
)
def test_a_pool_of_several_machines_serves_machines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, pool: str, hosts: str
):
    monkeypatch.setenv("JAX_CXL_NCCL_POOL", pool)
    script = tmp_path / "program.py"
    script.write_text("import os\nprint(os.environ['JAX_CXL_NCCL_HOSTS'])\n")
    done = _run("--nccl", str(script))
    assert done.stdout.split() == [hosts], done.stderr


@needs_library
def test_pools_that_the_library_cannot_use():
    said = _call(JAX_CXL_NCCL_POOL="dax:/dev/dax0.0,/dev/dax1.0")
    assert (said["id"], said["init"]) == (5, 5)  # ncclInvalidUsage
    assert "name one path" in str(said["init_error"])
    said = _call(JAX_CXL_NCCL_POOL="dax:/dev/dax0.0?size=1GB")
    assert said["id"] == 4  # ncclInvalidArgument
    assert "size='1GB' is not a size" in str(said["init_error"])


def test_run_says_what_is_missing():
    for arguments, message in (
        ((), "PROGRAM is missing"),
        (("true",), "say which collectives"),
        (("--hosts=some", "true"), "invalid choice"),
    ):
        done = _run(*arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@needs_library
def test_run_of_a_program_that_is_not_there():
    done = _run("--nccl", "no_such_program")
    assert (done.returncode, "no program no_such_program" in done.stderr) == (2, True)


@needs_library
def test_all_through_the_pool_without_gpu_or_nccl():
    said = _call(JAX_CXL_NCCL_HOSTS="all", JAX_CXL_NCCL_LIBRARY="/nowhere/libnccl.so.2")
    assert (said["id"], said["version"]) == (0, 0)
    assert said["number"] >= 22100
    if not os.path.exists("/dev/nvidia0"):
        assert said["init"] == 5  # ncclInvalidUsage
        assert "there is no GPU" in str(said["init_error"])
    assert said["bad_rank"] == 4  # ncclInvalidArgument
    assert said["end"] == 5
    assert said["forwarded"] != 0
    assert "/nowhere/libnccl.so.2" in str(said["forwarded_error"])


@needs_library
def test_never_takes_itself_for_nvidias():
    said = _call(JAX_CXL_NCCL_LIBRARY=str(library.path()))
    assert said["id"] != 0
    assert "jax_cxl's own" in str(said["init_error"])


@needs_library
def test_a_setting_that_does_not_exist():
    said = _call(JAX_CXL_NCCL_HOSTS="host")
    assert (said["id"], said["init"]) == (4, 4)
    assert "JAX_CXL_NCCL_HOSTS is 'host'" in str(said["init_error"])


@needs_library
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, for a stand-in of CUDA's library")
def test_a_program_whose_nccl_it_cannot_replace(tmp_path: pathlib.Path):
    cuda = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(cuda)], check=True)
    for program, debug, says in (
        (f"import ctypes; ctypes.CDLL('{cuda}')", "INFO", True),
        (f"import ctypes; ctypes.CDLL('{cuda}')", "WARN", False),
        ("", "INFO", False),
    ):
        environment = os.environ | {"LD_PRELOAD": str(library.path()), "NCCL_DEBUG": debug}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert ("made no communicator through this library" in done.stderr) == says, done.stderr


# Asks for a premultiplied sum that is not possible. `comm` begins with the word that marks a
# communicator of the pool, so the library takes it for one.
_PREMULTIPLIED = """
import ctypes, json, sys
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetLastError.restype = ctypes.c_char_p
comm, op = (ctypes.c_uint64 * 512)(int(sys.argv[1], 16)), ctypes.c_int(0)
result = nccl.ncclRedOpCreatePreMulSum(
    ctypes.byref(op), ctypes.byref(ctypes.c_float(3)), 7, 2, ctypes.byref(comm)
)
print(json.dumps([result, op.value, nccl.ncclGetLastError(None).decode()]))
"""


@needs_library
def test_a_refused_premultiplied_sum_is_not_a_plain_sum():
    abi = (_SOURCES.parent / "nccl/interface/abi.h").read_text()
    (magic,) = re.findall(r"kCommunicatorMagic = (0x\w+);", abi)
    command = [sys.executable, "-c", _PREMULTIPLIED, magic]
    environment = os.environ | {"LD_PRELOAD": str(library.path())}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    result, op, said = json.loads(done.stdout)
    # PyTorch goes on after the error, so the operation must not be 0, which is the sum.
    assert (result, op) == (4, 0x7FFFFFFF)
    assert "there is no scalar residence 2" in said


# Stands for NVIDIA's library. It returns what the config of a new communicator says.
_NVIDIAS = """
struct Config { unsigned long size; unsigned magic, version; int blocking; };
int ncclCommSplit(void* parent, int color, int key, void** made, struct Config* config) {
  return config ? 100 + config->blocking : 200;
}
int ncclCommShrink(
    void* parent, int* excluded, int count, void** made, struct Config* config, int flags) {
  return config ? 100 + config->blocking : 200;
}
"""
_CHILDREN = """
import ctypes, json, struct
nccl = ctypes.CDLL("libnccl.so.2")
parent, made, none = (ctypes.c_uint64 * 8)(), ctypes.c_void_p(), (ctypes.c_int * 1)(0)
said = []
for config in (struct.pack("<QIIi4x", 24, 0xCAFEBEEF, 22800, 0), None):
    said.append(nccl.ncclCommSplit(parent, 0, 0, ctypes.byref(made), config))
    said.append(nccl.ncclCommShrink(parent, none, 1, ctypes.byref(made), config, 0))
print(json.dumps(said))
"""


@needs_library
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, for a stand-in of NVIDIA's library")
@pytest.mark.parametrize(("hosts", "blocking"), [("processes", 1), ("machines", 0)])
def test_nvidias_communicators_block_beside_those_of_the_pool(
    tmp_path: pathlib.Path, hosts: str, blocking: int
):
    fake = tmp_path / "libnccl.so.2"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(fake)]
    subprocess.run(command, input=_NVIDIAS, text=True, check=True)
    environment = os.environ | {
        "LD_PRELOAD": str(library.path()),
        "JAX_CXL_NCCL_HOSTS": hosts,
        "JAX_CXL_NCCL_LIBRARY": str(fake),
    }
    command = [sys.executable, "-c", _CHILDREN]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [100 + blocking, 100 + blocking, 200, 200]


@needs_library
@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm, which lists what a library exports")
def test_exports_what_the_sources_say():
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(library.path())]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = set(listed.split())
    forwarded = re.findall(r"^FORWARD\((\w+),", (_SOURCES / "forwarded.inc").read_text(), re.M)
    own = [
        name
        for file in _SOURCES.glob("*.cc")
        for name in re.findall(_EXPORTED, file.read_text(), re.M)
    ]
    assert sorted(forwarded) == forwarded and not set(forwarded) & set(own)
    assert exported == {prefix + name for name in forwarded + own for prefix in ("", "p")}


def test_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "path", lambda: tmp_path / "libnccl.so.2")
    monkeypatch.setattr(library, "real_path", lambda: pathlib.Path("/wheel/libnccl.so.2"))
    assert library.environment("all", {"LD_PRELOAD": "a.so", "CUDA_MODULE_LOADING": "LAZY"}) == {
        "LD_PRELOAD": f"{tmp_path}/libnccl.so.2:a.so",
        "VLLM_NCCL_SO_PATH": f"{tmp_path}/libnccl.so.2",
        "SGLANG_NCCL_SO_PATH": f"{tmp_path}/libnccl.so.2",
        "JAX_CXL_NCCL_HOSTS": "all",
        "CUDA_MODULE_LOADING": "LAZY",
        "JAX_CXL_NCCL_LIBRARY": "/wheel/libnccl.so.2",
    }
    assert library.environment("all", {})["CUDA_MODULE_LOADING"] == "EAGER"
    assert "CUDA_MODULE_LOADING" not in library.environment("all", {}, one_gpu=True)
    # A launcher in a launcher does not name the library twice.
    twice = library.environment("all", library.environment("all", {}))
    assert twice["LD_PRELOAD"] == f"{tmp_path}/libnccl.so.2"


@pytest.mark.parametrize(
    ("gpu", "hosts", "variables", "says"),
    [
        (False, "all", {}, "no communicator of NCCL goes through a pool: .* has no NVIDIA GPU"),
        (True, "machines", {}, "no communicator of NCCL .*=machines needs memory"),
        (True, "all", {"JAX_CXL_NCCL_LIBRARY": "/missing"}, "no communicator .* does not exist"),
        (
            True,
            "all",
            {},
            "over several GPUs go through pools in /dev/shm, and the others to /.*libnccl;"
            " NCCL_DEBUG=INFO names each$",
        ),
        (
            True,
            "all",
            {"VLLM_NCCL_SO_PATH": "/its/libnccl.so.2"},
            "; VLLM_NCCL_SO_PATH=/its/libnccl.so.2 is replaced$",
        ),
        (True, "all", {"JAX_CXL_NCCL_LIBRARY": __file__}, "no communicator .* is not a library"),
        (
            True,
            "machines",
            {"JAX_CXL_NCCL_POOL": "dax:/dev/dax0.0"},
            "over several machines go through pools in dax:/dev/dax0.0,",
        ),
    ],
)
def test_what_goes_through_a_pool(monkeypatch, capsys, tmp_path, gpu, hosts, variables, says):
    monkeypatch.setattr(library, "path", lambda: tmp_path / "libnccl.so.2")
    for name in ("libnccl", "libnccl.so.2"):
        shutil.copy(sys.executable, tmp_path / name)
    monkeypatch.setattr(library, "real_path", lambda: tmp_path / "libnccl")
    monkeypatch.setattr(library, "has_gpu", lambda: gpu)
    for name in ("JAX_CXL_NCCL_LIBRARY", "JAX_CXL_NCCL_POOL", *library._PATHS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not (gpu and hosts == "all" and not variables):
        monkeypatch.setattr(library, "environment", lambda *_, **__: {})
    ran = []
    monkeypatch.setattr(os, "execve", lambda *arguments: ran.append(arguments))
    run_program.main(["--nccl", f"--hosts={hosts}", "true"])
    assert len(ran) == 1
    assert re.search(f"^jax_cxl: --nccl: .*{says}", capsys.readouterr().err, re.M)
    if hosts == "all":  # All that the launcher has.
        script = tmp_path / "a.py"
        script.touch()
        monkeypatch.setattr(os, "environ", dict(os.environ))
        launch._parse(["--nccl", str(script)])
        assert re.search(f"^jax_cxl: --nccl: .*{says}", capsys.readouterr().err, re.M)


def test_command_without_the_library(monkeypatch, capsys):
    def missing() -> pathlib.Path:
        raise FileNotFoundError("not built")

    monkeypatch.setattr(library, "path", missing)
    assert cli.main([]) == 1
    assert "not built" in capsys.readouterr().err
