"""Adam, whose state lies in pinned host memory between the steps, on shards of all processes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app

import jax_cxl


def main(_):
    jax.distributed.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    device = jax.NamedSharding(mesh, jax.P("i"))
    host = device.with_memory_kind("pinned_host")
    values = np.linspace(-1, 1, 8 * jax.device_count(), dtype=np.float32)
    weights = jax.make_array_from_callback(values.shape, device, lambda i: values[i])
    optimizer = optax.adam(0.1)

    def loss(weights):
        return jnp.square(weights - weights.mean()).sum()

    def place(state, where):
        return jax.tree.map(lambda v: jax.device_put(v, where) if v.ndim else v, state)

    def step(weights, state):
        grads = jax.grad(loss)(weights)
        updates, state = optimizer.update(grads, place(state, device))
        return optax.apply_updates(weights, updates), place(state, host)

    def train():
        state = jax.jit(lambda w: place(optimizer.init(w), host))(weights)
        jitted, x = jax.jit(lambda w, s: step(w, s), donate_argnums=1), weights
        for _ in range(3):
            x, state = jitted(x, state)
        return x, state

    taken = jax_cxl.stats().collectives_taken
    x, state = train()
    if jax_cxl.stats().collectives_taken == taken:
        raise SystemExit("nothing went through the pool")
    (adam, *_) = state
    kinds = {adam.mu.sharding.memory_kind, adam.nu.sharding.memory_kind}
    # The expected weights come from NumPy, which rounds the mean differently. So they are compared
    # with a tolerance.
    w, mu, nu = values.astype(np.float64), 0.0, 0.0
    for count in range(1, 4):
        gradient = 2 * (w - w.mean())
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
        w = w - 0.1 * (mu / (1 - 0.9**count)) / (np.sqrt(nu / (1 - 0.999**count)) + 1e-8)
    for shard in x.addressable_shards:
        np.testing.assert_allclose(shard.data, w[shard.index], rtol=1e-4, atol=1e-4)
    print(f"right, in {', '.join(kinds)}", flush=True)


if __name__ == "__main__":
    app.run(main)
