"""Training state that lives in a store: offloaded trees, and optimizers that update in pieces."""
