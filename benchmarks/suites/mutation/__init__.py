"""Parts of benchmarks/suites/mutants.py."""
