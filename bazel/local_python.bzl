"""The Python in use as a repository: toolchain, nanobind, XLA FFI headers.

$JAX_CXL_PYTHON, else the python3 on PATH. Its site-packages are used as they are.
"""

_QUERY = """
import importlib.util, pathlib, sys, sysconfig
import nanobind
jaxlib = importlib.util.find_spec("jaxlib").submodule_search_locations[0]
print("interpreter=" + sys.executable)
print("python=" + sysconfig.get_path("include"))
print("nanobind=" + str(pathlib.Path(nanobind.__file__).parent))
print("xla_ffi=" + jaxlib + "/include")
"""

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

py_runtime(name = "runtime", interpreter_path = "{interpreter}", python_version = "PY3")

py_runtime_pair(name = "runtime_pair", py3_runtime = ":runtime")

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)

cc_library(name = "python", hdrs = glob(["python/**/*.h"]), includes = ["python"])

cc_library(
    name = "xla_ffi",
    hdrs = glob(["xla_ffi/xla/ffi/api/*.h"]),
    includes = ["xla_ffi"],
)

cc_library(
    name = "nanobind",
    srcs = ["nanobind/src/nb_combined.cpp"],
    hdrs = glob(["nanobind/include/**/*.h", "nanobind/ext/**/*.h"]),
    copts = ["-fno-strict-aliasing", "-fvisibility=hidden", "-w"],
    includes = ["nanobind/include", "nanobind/ext/robin_map/include"],
    textual_hdrs = glob(["nanobind/src/*"], exclude = ["nanobind/src/nb_combined.cpp"]),
    deps = [":python"],
)
"""

def _local_python_impl(ctx):
    python = ctx.os.environ.get("JAX_CXL_PYTHON") or ctx.which("python3")
    answer = ctx.execute([python, "-c", _QUERY])
    if answer.return_code:
        fail("%s must have nanobind and jaxlib:\n%s" % (python, answer.stderr))
    found = dict([line.split("=", 1) for line in answer.stdout.strip().split("\n")])
    for name in ["python", "nanobind", "xla_ffi"]:
        ctx.symlink(found[name], name)
    ctx.file("BUILD.bazel", _BUILD.format(**found))

local_python = repository_rule(
    implementation = _local_python_impl,
    configure = True,
    environ = ["JAX_CXL_PYTHON", "PATH"],
    local = True,
)
