"""Code that the training programs share: model, data, loop, report."""
