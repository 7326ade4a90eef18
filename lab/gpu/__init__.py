"""Parts of gpu_suite.py."""
