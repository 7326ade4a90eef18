"""Targets from the files of a folder: a new source or test needs no edit."""

load("//bazel:settings.bzl", "CUDA_ARCHITECTURES", "CXX_OPTIONS", "NVCC_OPTIONS")

_COPTS = CXX_OPTIONS + ["-fvisibility=hidden"]

def _tests(name, deps, tags):
    """The folder's tests: one program, <folder>_tests, from one unit that includes each *_test.cc.

    GoogleTest's header and the library's take most of the time of the compiler. So a folder
    includes them once. The files share the names of an anonymous namespace, and a process.

    Args:
      name: of the folder.
      deps: what the tests include.
      tags: of the test; a test tagged `manual` is built, but not run, by its own name alone.
    """
    files = native.glob(["*_test.cc"])
    if not files:
        return
    tests = name + "_tests"
    native.cc_library(
        name = tests + "_files",
        testonly = True,
        textual_hdrs = files,
        tags = tags,
    )
    native.genrule(
        name = tests + "_unit",
        testonly = True,
        outs = [tests + ".cc"],
        cmd = "printf '#include \"%s\"\\n' " + " ".join([
            native.package_name() + "/" + file
            for file in files
        ]) + " > $@",
        tags = tags,
    )
    native.cc_test(
        name = tests,
        timeout = "moderate",
        srcs = [tests + ".cc"],
        copts = _COPTS + ["-O1"],  # Compiles in half the time.
        tags = tags,
        deps = [":" + tests + "_files"] + deps,
    )

def _benchmarks(deps, tags):
    """The folder's benchmarks, a program each."""
    for benchmark in native.glob(["*_benchmark.cc"]):
        native.cc_binary(
            name = benchmark[:-len(".cc")],
            testonly = True,
            srcs = [benchmark],
            copts = _COPTS,
            tags = tags,
            deps = deps,
        )

def _headers(testonly = False):
    native.filegroup(
        name = "headers",
        testonly = testonly,
        srcs = native.glob(["*.h", "*.cuh"]),
        visibility = ["//visibility:public"],
    )

def cxl_layer(
        name,
        deps = [],
        test_deps = [],
        copts = [],
        linkstatic = False,
        testonly = False,
        tags = []):
    """A folder of cc/: its library, a test of all *_test.cc, a program per *_benchmark.cc.

    Args:
      name: of the library: the folder's name.
      deps: the folders that the library may include; nothing else is visible.
      test_deps: the folders that its tests and benchmarks may include as well.
      copts: options on top of those of every folder.
      linkstatic: whether the library has no shared form.
      testonly: whether only tests and benchmarks may use the library.
      tags: of the targets.
    """
    native.cc_library(
        name = name,
        testonly = testonly,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc", "*_benchmark.cc"]),
        hdrs = native.glob(["*.h"]),
        copts = _COPTS + copts,
        linkopts = ["-lpthread", "-lrt"],
        linkstatic = linkstatic,
        tags = tags,
        visibility = ["//visibility:public"],
        deps = deps,
    )
    _headers(testonly)
    program_deps = [":" + name, "//bazel:gtest"] + deps + test_deps
    _tests(name, program_deps, tags)
    _benchmarks(program_deps, tags)

def cxl_kernels(name, headers, deps):
    """The *.cu of the folder, compiled by nvcc. Tagged manual, as all that needs CUDA.

    Args:
      name: of the library.
      headers: filegroups of what the *.cu include, directly or not.
      deps: the libraries behind these headers.
    """
    objects = []
    options = NVCC_OPTIONS + [
        "-gencode=arch=compute_%s,code=[compute_%s,sm_%s]" % (each, each, each)
        for each in CUDA_ARCHITECTURES
    ]
    for kernel in native.glob(["*.cu"]):
        objects.append(kernel + ".pic.o")
        native.genrule(
            name = kernel + "_object",
            srcs = [kernel, ":headers"] + headers,
            outs = [kernel + ".pic.o"],
            cmd = "$(location @local_cuda//:nvcc) -std=c++20 -O3 " + " ".join(options) +
                  " -Xcompiler=-fPIC,-ffp-contract=off -I . -c $(location " + kernel + ") -o $@",
            tags = ["manual"],
            tools = ["@local_cuda//:nvcc"],
        )
    native.cc_library(
        name = name,
        srcs = objects,
        hdrs = native.glob(["*.h"]),
        tags = ["manual"],
        visibility = ["//visibility:public"],
        deps = deps + ["@local_cuda//:cudart"],
    )
    _headers()

def cxl_cuda_part(name, deps = [], test_deps = [], testonly = False):
    """A folder whose *.cc need CUDA: like cxl_layer, but tagged manual."""
    cxl_layer(
        name = name,
        deps = deps + ["@local_cuda//:cudart"],
        tags = ["manual"],
        test_deps = test_deps,
        testonly = testonly,
    )

# What nanobind needs.
_PYTHON_COPTS = ["-fno-strict-aliasing"]

_NANOBIND = ["@local_python//:nanobind"]

def cxl_python_part(name, deps = []):
    """A folder of a nanobind module: like cxl_layer, but it may include nanobind."""
    cxl_layer(
        name = name,
        copts = _PYTHON_COPTS,
        linkstatic = True,  # nanobind hides the symbols that a shared form would need.
        deps = deps + _NANOBIND,
    )

def cxl_python_module(name, deps, tags = [], testonly = False):
    """A nanobind module from the *.cc of the folder and its parts, as the target <name>.so.

    Args:
      name: of the module.
      deps: its parts, and the layers that it binds.
      tags: of the target.
      testonly: whether only tests may use the module.
    """
    native.cc_binary(
        name = name + ".so",
        testonly = testonly,
        tags = tags,
        srcs = native.glob(["*.cc", "*.h"]),
        copts = _COPTS + _PYTHON_COPTS,
        linkshared = True,
        visibility = ["//visibility:public"],
        deps = deps + _NANOBIND,
    )

def cxl_pytests(deps, data):
    """Tests from **/*_test.py, run by pytest; other *.py go with each of them.

    The files of a folder are one test, <folder>_tests: a process for each would spend most of its
    time on the start of JAX. The files in the folder jobs/ are a test each, with the tag `jobs`.
    They start several processes, and want all cores.

    Args:
      deps: what the tests import or read.
      data: files that they read, of other folders or made by Bazel.
    """
    files = native.glob(["**/*_test.py"])
    native.py_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["**/*.py"], exclude = files),
        data = native.glob(["**"], exclude = ["**/*.py", "**/*.pyc", "**/*.so", "BUILD.bazel"]),
    )
    tests = {}
    for file in files:
        folder = file.partition("/")[0]
        name = file[:-len(".py")] if folder == "jobs" else folder + "_tests"
        tests.setdefault(name, []).append(file)
    for name, srcs in tests.items():
        native.py_test(
            name = name,
            timeout = "long",
            srcs = ["//bazel:pytest_main.py"] + srcs,
            args = ["$(rootpath %s)" % file for file in srcs],
            data = data,
            imports = ["."],
            main = "//bazel:pytest_main.py",
            tags = ["jobs"] if name.startswith("jobs/") else [],
            deps = [":support", "//bazel:site"] + deps,
        )
