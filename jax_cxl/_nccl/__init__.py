"""The library with NCCL's interface (`libnccl.so.2` in this folder), and how programs get it.

This folder is also the wheel jax_cxl_nccl (release/build.py). So it runs on Python 3.9, imports
itself by relative imports, and imports nothing else that pip installs.
"""
