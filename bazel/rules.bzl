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
    for test in tests:
        native.cc_test(
            name = test[:-len(".cc")],
            timeout = "moderate",
            srcs = [test],
            copts = _COPTS,
            deps = [":" + name, "//bazel:gtest"] + deps,
        )
    for benchmark in benchmarks:
        native.cc_binary(
            name = benchmark[:-len(".cc")],
            srcs = [benchmark],
            copts = _COPTS,
            deps = [":" + name] + deps,
        )

def cxl_python_module(name, deps):
    """A nanobind module from the *.cc of the folder, as the target <name>.so."""
    native.cc_binary(
        name = name + ".so",
        srcs = native.glob(["*.cc", "*.h"]),
        copts = _COPTS + ["-fno-strict-aliasing"],
        linkshared = True,
        visibility = ["//visibility:public"],
        deps = deps + ["@local_python//:nanobind"],
    )

def cxl_pytests(deps):
    """A test per **/*_test.py, run by pytest; other *.py go with each of them."""
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
            deps = [":support", "//bazel:site"] + deps,
        )
