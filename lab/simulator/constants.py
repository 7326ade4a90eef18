"""Every constant of the model, with its source. All numbers of the simulator are in this file.

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

# The machine of the paper.
HOSTS = 3  # paper
CARDS = 6  # paper

# --- Links and cards -----------------------------------------------------------------------------

# paper: "about 20 GB/s" in each direction between a GPU and the pool, with one DMA engine for each
# direction.
GPU_OUT = 20 * GB
GPU_IN = 20 * GB
# here: 55 GB/s between a GPU and host memory over the same PCIe Gen5 x16. The model uses it as the
# rate of a host's link to the pool. A single GPU of a host does not reach this rate (GPU_OUT,
# GPU_IN); several GPUs of a host share it.
UPLINK = 55 * GB
# Beluga: 22.5 GB/s per card, measured with two ranks that share the card. We use the same rate for
# reads and for writes.
CARD_IN = 22.5 * GB
CARD_OUT = 22.5 * GB
# Micron: 36 GB/s per card for reads and writes together, at two reads for each write. This is less
# than CARD_IN + CARD_OUT, because the DRAM serves reads and writes in turn, although the link has
# two directions.
CARD_BOTH = 36 * GB
# H100 SXM data sheet: 3.35 TB/s. Bounds only copies inside a GPU.
MEMORY = 3350 * GB

# --- Latencies of the pool -----------------------------------------------------------------------

# paper: the latency of a load from the pool, and of a load from DRAM.
POOL_LOAD = 0.658 * US
DRAM_LOAD = 0.214 * US

# --- jax_cxl: one kernel a call, on `coherent` and `uncached` pools ------------------------------

# NCCL: base latency of a ring kernel with flags in its lines (LL). We assume that our kernels take
# as long to start.
KERNEL_START = 6.6 * US
# A load of a doorbell that has rung already. Each step that waits makes at least one such load.
KERNEL_POLL = POOL_LOAD
# Time from one kernel's doorbell until another kernel sees it. here: through DRAM, half of the 3.0
# us of a round trip between two polling kernels. A doorbell is a store and a load. Each takes
# POOL_LOAD - DRAM_LOAD longer in the pool than in DRAM. The load that sees the doorbell is
# subtracted, because KERNEL_POLL counts it.
KERNEL_DOORBELL = 1.5 * US + 2 * (POOL_LOAD - DRAM_LOAD) - KERNEL_POLL
# A fence before a doorbell, which waits until earlier stores have arrived. We assume that it takes
# as long as a load.
KERNEL_FENCE = POOL_LOAD
# design: doorbells lie 128 bytes apart.
DOORBELL_BYTES = 128
# Two things are not constants here, because the model takes them from the CUDA engine
# (cc/plan/gpu_geometry.h): the sizes of rings, and which calls carry flags in the lines of their
# data.

# --- jax_cxl on `flush` pools: a host passes doorbells on and flushes (docs/decisions/0018) -------

# here, with four threads of a Xeon, after DMA into pinned memory: clwb of 1 MiB takes 18 us, and
# clflushopt of 32 MiB takes 381 us. jax_cxl has up to four threads for each GPU.
WRITE_BACK_RATE = MIB / (18 * US)
DROP_RATE = 32 * MIB / (381 * US)

# A store by a host, then on average one and a half polls by the other host. We assume that the
# store and each poll take as long as a load from the pool.
HOST_DOORBELL = 2.5 * POOL_LOAD
# A doorbell goes from a GPU to its host (1.5 us), from host to host, and to the other GPU (1.5 us).
# here: 1.5 us is the time of a word in host memory from one kernel to another kernel that polls.
# The load that sees the doorbell is subtracted, because it is counted as a poll.
RELAYED_DOORBELL = 1.5 * US + HOST_DOORBELL + 1.5 * US - DRAM_LOAD

# --- InfiniBand and NCCL -------------------------------------------------------------------------

# paper: 200 Gb/s.
INFINIBAND = 25 * GB
# The fraction of INFINIBAND that NCCL reaches, one value for all operations. No source gives it for
# the paper's network. We calibrated it on the only figure of the paper in which nothing but rates
# matters: the paper's variant All is 1.05 times as fast as NCCL for all-reduce above 256 MB. The
# other speeds relative to the paper's NCCL follow from this value. docs/performance.md shows how
# they depend on it.
NCCL_EFFICIENCY = 0.48
# NCCL, for each of its protocols (LL, LL128, Simple): the latency of a call and of a network hop,
# for rings and for trees, and the fraction of the transferred bytes that is payload.
NCCL_BASE = (6.6 * US, 14.0 * US, 8.4 * US)
NCCL_TREE_BASE = (6.8 * US, 14.0 * US, 8.4 * US)
NCCL_RING_HOP = (2.7 * US, 4.0 * US, 14.0 * US)
NCCL_TREE_HOP = (5.0 * US, 8.5 * US, 14.0 * US)
NCCL_PAYLOAD = (0.5, 0.92, 1.0)
NCCL_TREE_BANDWIDTH = 0.92
# NCCL: latency of a hop over NVLink, for each protocol.
NCCL_NVLINK_HOP = (0.6 * US, 1.9 * US, 3.4 * US)
NCCL_NVLINK_TREE_HOP = (0.6 * US, 1.25 * US, 4.0 * US)
# An assumption, neither measured nor from a source: the fraction of INFINIBAND that NCCL reaches on
# a well-tuned network. The tables of hosts with several GPUs use it, because it favors NCCL.
NCCL_TUNED_EFFICIENCY = 0.9

# Bus bandwidth of a GPU inside a host. here: all_gather of 256 MiB by NCCL over NVLink, two H200s.
# We use it for eight GPUs and other operations too, without a measurement.
NVLINK = 250 * GB

# --- Prices --------------------------------------------------------------------------------------

# paper: the price of a CXL switch, and of the InfiniBand switch that it replaces.
CXL_SWITCH_DOLLARS = 5_800
INFINIBAND_SWITCH_DOLLARS = 16_000

# --- The model itself ----------------------------------------------------------------------------

# The model does not run all rounds of long calls of many ranks (cc/simulator/run.h). The
# parameter `sample_rounds` limits them: it is SAMPLE_WORK / ranks^2, but at least SAMPLE_ROUNDS.
# All results for up to 12 hosts in docs/performance.md are exact, except for the longest messages.
SAMPLE_WORK = 1 << 16
SAMPLE_ROUNDS = 192
