"""What Bazel and CMake both need to know. CMakeLists.txt reads the quoted words of these lists."""

# Fused multiply-add would make results depend on the machine. Reductions
# promise the same bits everywhere.
CXX_OPTIONS = ["-Wall", "-Wextra", "-ffp-contract=off"]

# Contraction is nvcc's fused multiply-add.
NVCC_OPTIONS = ["-fmad=false", "--expt-relaxed-constexpr"]

CUDA_ARCHITECTURES = ["80", "90"]
