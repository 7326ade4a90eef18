"""Code that examples share: model, data, loop, report, store."""
