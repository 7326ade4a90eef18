"""Training state whose place is a store: offloaded trees, and optimizers that update in pieces."""
