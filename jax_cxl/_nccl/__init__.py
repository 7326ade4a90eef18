"""The library with NCCL's interface (`libnccl.so.2` in this folder), and how programs get it."""
