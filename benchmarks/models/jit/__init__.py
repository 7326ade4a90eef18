"""Parts of jit_training.py."""
