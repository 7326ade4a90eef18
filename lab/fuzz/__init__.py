"""Parts of fuzz_programs.py."""
