"""The test matrix: operation x dtype x transformation x layout, bitwise against NumPy."""
