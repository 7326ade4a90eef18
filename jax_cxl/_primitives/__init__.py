"""What the operations share: named axes, dtypes, batching rules, and lowering to custom calls."""
