#!/usr/bin/env bash
# nccl_tests.sh [GPUS ...]: NVIDIA's nccl-tests on the GPUs of this machine, through the pool and through NCCL over host memory.
#
# Needs nvcc, NCCL with its headers (NCCL_HOME; by default that of the Python package), and jax_cxl with its module for
# GPUs. Fetches nccl-tests, unless NCCL_TESTS names a copy. Uses 2 GPUs, or each of the given numbers in turn. One process has
# all GPUs. If MPI names the folder of an MPI, each process has GPUS_PER_PROCESS GPUs (1), and counts as a host.
# With THREADS=1 each GPU of a process has a thread.
# SIZES is "-b 8 -e 1G -f 4" unless it is set, PROGRAMS names the programs, GRAPHS=1 also runs each program from graphs, and
# ALL_TYPES=1 all types and reductions. WAYS is "pool nccl copies" (NCCL by kernels, its default, and by copy engines) and can
# have "sockets" (NCCL without shared memory) and "hosts" (NCCL as if each process were a host: NVLink inside, sockets
# between). The ways take turns, ROUNDS times (1). Prints for each run which library, the program and its options, the largest
# number of wrong elements, and the table. python -m lab.nccl.nccl_tests_table compares the ways in this output.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
library=${JAX_CXL_NCCL:-$here/../../jax_cxl/_nccl/libnccl.so.2}
home=${NCCL_HOME:-$(python3 -c 'import nvidia.nccl as n; print(n.__path__[0])')}
tests=${NCCL_TESTS:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -z $tests ]]; then
  git clone -q --depth 1 https://github.com/NVIDIA/nccl-tests "$work/tests"
  tests=$work/tests
fi
mkdir -p "$work/home/lib"
ln -s "$home/include" "$work/home/include"
ln -s "$home/lib/libnccl.so.2" "$work/home/lib/libnccl.so"
ln -s "$home/lib/libnccl.so.2" "$work/home/lib/libnccl.so.2"
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
make -s -j"$(nproc)" -C "$tests" ${MPI:+MPI=1 "MPI_HOME=$MPI"} NCCL_HOME="$work/home" BUILDDIR="$work/build" \
  NVCC_GENCODE="-gencode=arch=compute_$architecture,code=sm_$architecture" > "$work/make.log" 2>&1 || { tail -20 "$work/make.log"; exit 1; }

export LD_LIBRARY_PATH=$work/home/lib${MPI:+:$MPI/lib} CUDA_MODULE_LOADING=EAGER
per_process=${GPUS_PER_PROCESS:-1}
hosts=all
if [[ -n ${MPI:-} ]]; then hosts=processes; fi
run() {  # WAY PROGRAM OPTIONS
  local name=$1 program=$2
  shift 2
  local environment=(NCCL_P2P_DISABLE=1)
  case $name in
    pool) environment=("JAX_CXL_NCCL_HOSTS=$hosts" "LD_PRELOAD=$library") ;;
    copies) environment+=(NCCL_SHM_USE_CUDA_MEMCPY=1 NCCL_SHM_MEMCPY_MODE=3) ;;
    sockets) environment+=(NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1) ;;
    # shellcheck disable=SC2016
    hosts) environment=(NCCL_IB_DISABLE=1 bash -c 'NCCL_HOSTID=$PMI_RANK exec "$@"' bash) ;;
  esac
  local command=(env "${environment[@]}" "$work/build/${program}_perf")
  if [[ -n ${MPI:-} ]]; then
    command=("$MPI/bin/mpiexec" -n $((gpus / per_process)) "${command[@]}")
    if [[ -n ${THREADS:-} ]]; then command+=(-t "$per_process" -g 1); else command+=(-g "$per_process"); fi
  else
    command+=(-g "$gpus")
  fi
  local status=0
  timeout "${LIMIT:-120}" "${command[@]}" -c 1 "$@" > "$work/out" 2>&1 || status=$?
  echo "== $gpus GPUs $name $program $* : status $status, wrong $(awk '/^ +[0-9]/{for (i = 9; i <= NF; i += 4) if ($i > most) most = $i} END{print most + 0}' "$work/out")"
  if [[ $status -ne 0 ]]; then tail -5 "$work/out"; fi
  awk '/^ +[0-9]/{print "   ", $0}' "$work/out"
}
sizes=${SIZES:--b 8 -e 1G -f 4}
for gpus in "${@:-2}"; do
  for program in ${PROGRAMS:-all_reduce all_gather reduce_scatter alltoall broadcast reduce gather scatter sendrecv}; do
    for options in "-n 5 -w 1" ${GRAPHS:+"-n 5 -w 1 -G 3"}; do
      for ((round = 0; round < ${ROUNDS:-1}; round++)); do
        for way in ${WAYS:-pool nccl copies}; do
          # shellcheck disable=SC2086
          run "$way" "$program" $sizes $options
        done
      done
    done
  done
  if [[ -n ${ALL_TYPES:-} ]]; then
    for program in all_reduce reduce_scatter reduce; do
      for op in sum prod max min avg mulsum; do
        run pool "$program" -b 64 -e 1M -f 16 -n 1 -w 0 -d all -o "$op"
      done
    done
  fi
done
