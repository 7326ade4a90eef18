"""Targets from the files of a folder: a new source or test needs no edit."""

_COPTS = ["-Wall", "-Wextra", "-ffp-contract=off", "-fvisibility=hidden"]

def cxl_layer(name, deps = [], copts = []):
    """One layer of cc/: its library, a test per *_test.cc, a binary per *_benchmark.cc.

    Args:
      name: of the library: the folder's name.
      deps: the layers left of it that it may include; nothing else is visible.
      copts: options on top of those of every layer.
    """
    tests = native.glob(["*_test.cc"])
    benchmarks = native.glob(["*_benchmark.cc"])
    native.cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = tests + benchmarks),
        hdrs = native.glob(["*.h"]),
        copts = _COPTS + copts,
        linkopts = ["-lpthread", "-lrt"],
        visibility = ["//visibility:public"],
        deps = deps,
    )
    native.filegroup(
        name = "headers",
        srcs = native.glob(["*.h", "*.cuh"]),
        visibility = ["//visibility:public"],
    )
    for test in tests:
        native.cc_test(
            name = test[:-len(".cc")],
            timeout = "moderate",
            srcs = [test],
            copts = _COPTS + ["-O1"],  # Compiles in half the time.
            deps = [":" + name, "//bazel:gtest"] + deps,
        )
    for benchmark in benchmarks:
        native.cc_binary(
            name = benchmark[:-len(".cc")],
            srcs = [benchmark],
            copts = _COPTS,
            deps = [":" + name] + deps,
        )

def cxl_kernels(name, headers, deps):
    """The *.cu of the folder, compiled by nvcc. Tagged manual, as all that needs CUDA.

    Args:
      name: of the library.
      headers: filegroups of what the *.cu include.
      deps: the libraries behind these headers.
    """
    objects = []
    for kernel in native.glob(["*.cu"]):
        objects.append(kernel + ".pic.o")
        native.genrule(
            name = kernel + "_object",
            srcs = [kernel, ":headers"] + headers,
            outs = [kernel + ".pic.o"],
            cmd = "$(location @local_cuda//:nvcc) -std=c++20 -O3 -fmad=false " +
                  "--expt-relaxed-constexpr -Xcompiler=-fPIC,-ffp-contract=off " +
                  "-gencode=arch=compute_80,code=[compute_80,sm_80] " +
                  "-gencode=arch=compute_90,code=[compute_90,sm_90] " +
                  "-I . -c $(location " + kernel + ") -o $@",
            tags = ["manual"],
            tools = ["@local_cuda//:nvcc"],
        )
    native.cc_library(
        name = name,
        srcs = objects,
        tags = ["manual"],
        visibility = ["//visibility:public"],
        deps = deps + ["@local_cuda//:cudart"],
    )

def cxl_cuda_part(name, deps):
    """The *.cc of the folder, a layer's part for GPUs: like cxl_layer, but tagged manual."""
    tests = native.glob(["*_test.cc"])
    programs = tests + native.glob(["*_benchmark.cc"])
    native.cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = programs),
        hdrs = native.glob(["*.h"]),
        copts = _COPTS,
        tags = ["manual"],
        visibility = ["//visibility:public"],
        deps = deps + ["@local_cuda//:cudart"],
    )
    for program in programs:
        native.cc_binary(
            name = program[:-len(".cc")],
            testonly = True,
            srcs = [program],
            copts = _COPTS,
            tags = ["manual"],
            deps = [":" + name, "//bazel:gtest"] + deps,
        )

def cxl_python_module(name, deps, headers = [], tags = []):
    """A nanobind module from the *.cc of the folder, as the target <name>.so.

    Args:
      name: of the module.
      deps: the layers that it binds.
      headers: filegroups of another module's headers.
      tags: of the target.
    """
    native.filegroup(
        name = "headers",
        srcs = native.glob(["*.h"]),
        visibility = ["//visibility:public"],
    )
    native.cc_binary(
        name = name + ".so",
        tags = tags,
        srcs = native.glob(["*.cc", "*.h"]) + headers,
        copts = _COPTS + ["-fno-strict-aliasing"],
        linkshared = True,
        visibility = ["//visibility:public"],
        deps = deps + ["@local_python//:nanobind"],
    )

def cxl_pytests(deps, jobs = []):
    """A test per **/*_test.py, run by pytest; other *.py go with each of them.

    Args:
      deps: what they import or read.
      jobs: tests that start several processes, and want all cores; tagged `jobs`.
    """
    tests = native.glob(["**/*_test.py"])
    native.py_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["**/*.py"], exclude = tests),
        data = native.glob(["**"], exclude = ["**/*.py", "**/*.pyc", "BUILD.bazel"]),
    )
    for test in tests:
        native.py_test(
            name = test[:-len(".py")],
            timeout = "long",
            srcs = ["//bazel:pytest_main.py", test],
            args = ["$(rootpath %s)" % test],
            imports = ["."],
            main = "//bazel:pytest_main.py",
            tags = ["jobs"] if test in jobs else [],
            deps = [":support", "//bazel:site"] + deps,
        )
