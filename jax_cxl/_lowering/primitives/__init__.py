"""Code that all operations share: named axes, dtypes, batching rules, lowering to custom calls."""
