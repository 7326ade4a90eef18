"""Mixture of experts: tokens to the ranks of their experts, results back, and who holds which."""
