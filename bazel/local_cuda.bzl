"""The CUDA toolkit whose nvcc is on PATH, or in $CUDA_HOME, as a repository.

Where there is none the targets exist, and fail with a message when somebody builds them. They are
tagged `manual`: `bazel build //...` leaves them out.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["nvcc"])

cc_library(
    name = "cudart",
    srcs = ["lib64/libcudart_static.a"],
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    linkopts = ["-ldl", "-lpthread", "-lrt"],
    tags = ["manual"],
)
"""

_NO_NVCC = """#!/bin/sh
echo "no nvcc on PATH or in CUDA_HOME: install the CUDA toolkit, version 12 or newer" >&2
exit 1
"""

def _local_cuda_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME")
    nvcc = ctx.path(home + "/bin/nvcc") if home else ctx.which("nvcc")
    ctx.file("BUILD.bazel", _BUILD)
    if not nvcc or not nvcc.exists:
        ctx.file("nvcc", _NO_NVCC)
        ctx.file("lib64/libcudart_static.a")
        return

    # The nvcc on PATH may be a link or a script, so ask it for its installation.
    plan = ctx.execute([nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null"]).stderr
    root = [line[len("#$ TOP="):] for line in plan.split("\n") if line.startswith("#$ TOP=")][0]
    ctx.file("nvcc", '#!/bin/sh\nexec "%s/bin/nvcc" "$@"\n' % root)
    ctx.symlink(root + "/include", "include")
    ctx.symlink(root + "/lib64", "lib64")

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    configure = True,
    environ = ["CUDA_HOME", "PATH"],
    local = True,
)
