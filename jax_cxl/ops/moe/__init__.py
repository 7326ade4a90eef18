"""Mixture of experts: dispatches tokens, combines the results, and places the experts."""
