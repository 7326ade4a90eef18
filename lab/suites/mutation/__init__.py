"""Parts of lab/suites/mutants.py."""
