"""Every constant of the model, with its source. Nothing else in the simulator holds a number.

Sources:
  paper     CCCL, arXiv 2602.22457 (3 hosts with one H100 each, TITAN-II switch, six CZ120 cards)
  Beluga    measurements of the Beluga paper on the same switch
  Micron    data sheet of the CZ120
  NCCL      defaults of NCCL's own cost model, v2.28.7, src/graph/tuning.cc
  here      measured by this project on an H200 machine with an emulated pool (DRAM, no CXL)
  design    chosen by jax_cxl itself

Rates are in bytes per second, times in seconds.
"""

GB = 1e9
US = 1e-6
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# The setting of the paper.
HOSTS = 3  # paper
CARDS = 6  # paper

# --- Links and cards -----------------------------------------------------------------------------

# paper: "about 20 GB/s" each way between a GPU and the pool, with one DMA engine per direction.
GPU_OUT = 20 * GB
GPU_IN = 20 * GB
# here: 55 GB/s between a GPU and host memory over the same PCIe Gen5 x16. One GPU per host never
# reaches this rate; several GPUs share it.
UPLINK = 55 * GB
# Beluga: 22.5 GB/s per card, which two ranks share. We use it for reads and for writes.
CARD_IN = 22.5 * GB
CARD_OUT = 22.5 * GB
# Micron: 36 GB/s per card with two reads for each write. The link has two directions; the DRAM has
# only one.
CARD_BOTH = 36 * GB
# H100 SXM data sheet: 3.35 TB/s. Bounds only copies inside a GPU.
MEMORY = 3350 * GB

# --- Latencies of the pool -----------------------------------------------------------------------

# paper: a load from the pool, and from DRAM.
POOL_LOAD = 0.658 * US
DRAM_LOAD = 0.214 * US

# --- jax_cxl: one kernel a call, on `coherent` and `uncached` pools ------------------------------

# NCCL: base latency of a ring kernel with flags in its lines (LL). Our kernel starts like NCCL's.
KERNEL_START = 6.6 * US
# A load of a doorbell that rang long before. Each step that waits makes at least one such load.
KERNEL_POLL = POOL_LOAD
# here: half of the 3.0 us that a round trip through DRAM takes between two polling kernels. A
# doorbell is a store and a load. Each takes POOL_LOAD - DRAM_LOAD longer in the pool than in DRAM.
# The load that sees the doorbell is subtracted, because KERNEL_POLL counts it.
KERNEL_DOORBELL = 1.5 * US + 2 * (POOL_LOAD - DRAM_LOAD) - KERNEL_POLL
# A fence before a doorbell, which waits until earlier stores have arrived. We assume that it takes
# as long as a load.
KERNEL_FENCE = POOL_LOAD
# design: doorbells lie 128 bytes apart.
DOORBELL_BYTES = 128
# design: the shortest round of a kernel of the CUDA engine in a pool of several devices
# (cc/comm/cuda/device_connection.h). The model has shorter rounds.
ENGINE_ROUND = MIB
# The model takes two things from the CUDA engine (cc/plan/gpu_geometry.h): the sizes of rings, and
# the choice of the calls that carry flags in their own lines.

# --- jax_cxl on `flush` pools: a host passes doorbells on and flushes (docs/decisions/0018) -------

# here, four threads of a Xeon after DMA into pinned memory: clwb of 1 MiB, clflushopt of 32 MiB.
# jax_cxl has up to four threads a GPU.
WRITE_BACK_RATE = MIB / (18 * US)
DROP_RATE = 32 * MIB / (381 * US)

# --- The paper's library: cudaMemcpyAsync and doorbells by the host ------------------------------

# Beluga, 16 KiB without flushes: 9.1 us out, 10.6 us in, minus the time of the bytes at 20 GB/s.
# This time runs from the call until the host knows that the copy is complete. The paper's library
# needs to know this before each doorbell.
COPY_PUT_SETUP = 9.1 * US - 16 * KIB / GPU_OUT
COPY_GET_SETUP = 10.6 * US - 16 * KIB / GPU_IN
# A store by the host, then on average one and a half polls. Each poll is a load from the pool.
HOST_DOORBELL = 2.5 * POOL_LOAD
# jax_cxl on `flush` pools: a doorbell goes from the GPU to its host, from host to host, and to the
# other GPU. here: a word in host memory takes 1.5 us from one kernel to another kernel that polls.
# The load that sees the doorbell is subtracted.
RELAYED_DOORBELL = 1.5 * US + HOST_DOORBELL + 1.5 * US - DRAM_LOAD
# here: the shortest operation on a stream, a copy of 4 KiB. It stands for the reduction after each
# copy.
REDUCE_SETUP = 2.4 * US
# paper: "4 to 8 is best". The model takes the best of these at each size.
CHUNKS = (1, 2, 4, 8)
# Not known: whether the readers of a broadcast follow the root together, begin with different
# chunks, or begin one after another. The model takes the best order at each size.
READER_ORDERS = ("same", "rotated", "staggered")

# --- InfiniBand and NCCL -------------------------------------------------------------------------

# paper: 200 Gb/s.
INFINIBAND = 25 * GB
# One value for all operations. No source gives the value of the paper's network. We calibrated it
# once, on the one figure in which only rates matter (All is 1.05 times as fast as NCCL for
# all-reduce above 256 MB). The rest of the tables follows from it. docs/performance.md shows how
# they depend on it.
NCCL_EFFICIENCY = 0.48
# NCCL, by protocol (LL, LL128, Simple): the latency of a call, the latency of a network hop for
# rings and for trees, and the part of the bandwidth that is payload.
NCCL_BASE = (6.6 * US, 14.0 * US, 8.4 * US)
NCCL_TREE_BASE = (6.8 * US, 14.0 * US, 8.4 * US)
NCCL_RING_HOP = (2.7 * US, 4.0 * US, 14.0 * US)
NCCL_TREE_HOP = (5.0 * US, 8.5 * US, 14.0 * US)
NCCL_PAYLOAD = (0.5, 0.92, 1.0)
NCCL_TREE_BANDWIDTH = 0.92
# NCCL: latency of a hop inside a host, by protocol: between GPUs on NVLink, and between GPUs on
# PCIe, by peer-to-peer copies or through the host's memory.
NCCL_NVLINK_HOP = (0.6 * US, 1.9 * US, 3.4 * US)
NCCL_NVLINK_TREE_HOP = (0.6 * US, 1.25 * US, 4.0 * US)
NCCL_PCIE_HOP = (1.0 * US, 2.5 * US, 5.7 * US)
# Neither measured nor from a source: we assume that a well-tuned network reaches this. The tables
# of hosts with several GPUs use it, because it favors NCCL.
NCCL_TUNED_EFFICIENCY = 0.9

# --- Inside a host of several GPUs: JAX's own collectives, which are NCCL's ----------------------

# Bus bandwidth of a GPU, by kind of link and operation.
INSIDE_RATES = {
    # here: NCCL over NVLink, 256 MiB, two H200s. Eight GPUs were not measured.
    "nvlink": {"all_gather": 250 * GB, "all_to_all": 273 * GB},
    # Peer-to-peer copies over PCIe were not measured. here: two GPUs that copy to and from the
    # host's memory at the same time, over the same Gen5 x16, reach 84 GB/s in both directions
    # together.
    "pcie": {"all_gather": 42 * GB, "all_to_all": 42 * GB},
    # here: NCCL through the host's memory (NCCL_P2P_DISABLE=1), 256 MiB, four H200s. Eight GPUs
    # were not measured.
    "none": {"all_gather": 27 * GB, "all_to_all": 31 * GB},
}

# --- Prices --------------------------------------------------------------------------------------

# paper: a CXL switch, and the InfiniBand switch that it replaces.
CXL_SWITCH_DOLLARS = 5_800
INFINIBAND_SWITCH_DOLLARS = 16_000

# --- Figures of the paper that the tables compare with -------------------------------------------

# Average speed over NCCL on InfiniBand, 1 MB to 4 GB, 3 hosts.
PAPER_AVERAGES = {
    "all_gather": 1.34,
    "broadcast": 1.84,
    "gather": 1.94,
    "scatter": 1.04,
    "all_reduce": 1.50,
    "reduce_scatter": 1.43,
    "reduce": 1.70,
    "all_to_all": 1.53,
}
# The paper's speeds for the smallest messages, if it gives them.
PAPER_SMALL = {"scatter": 0.46, "reduce_scatter": 0.48, "all_to_all": 0.7}
PAPER_LARGE_ALL_REDUCE = 1.05
# Latency at 12 hosts divided by latency at 3 hosts.
PAPER_GROWTH = {"all_reduce": (8.7, 12.2), "broadcast": (2.5, 2.5), "all_to_all": (3.6, 3.6)}
# Speed of All relative to the other variants.
PAPER_OVER_NAIVE = (1.0, 8.0)
PAPER_OVER_AGGREGATE = (1.16, 4.2)

# --- The model itself ----------------------------------------------------------------------------

# Long calls of many ranks do not run to the end. These are the limit for rounds x ranks^2 of the
# part that runs, and the fewest rounds that run. All results for up to 12 hosts in
# docs/performance.md are exact, except for the longest messages.
SAMPLE_WORK = 1 << 16
SAMPLE_ROUNDS = 192
