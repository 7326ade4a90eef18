"""Residuals of a forward pass that wait for the backward pass in a store."""
