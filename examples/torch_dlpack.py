"""Trains a PyTorch model in several processes. jax_cxl averages their gradients.

    pip install torch
    python -m jax_cxl.launch -n 2 examples/torch_dlpack.py

DLPack passes arrays between PyTorch and JAX. On CPUs neither direction copies an array, unless
PyTorch's memory is not aligned as JAX needs it.
"""

import jax
import torch
from absl import app, flags, logging

import jax_cxl

_STEPS = flags.DEFINE_integer("steps", 100, "Steps of training.")

_FEATURES, _ROWS = 16, 32


class Average:
    """Averages vectors of PyTorch over all ranks, each of which has one device."""

    def __init__(self) -> None:
        mesh = jax_cxl.make_mesh((jax.device_count(),), ("i",))
        self._sharding = jax.NamedSharding(mesh, jax.P("i"))
        self._program = jax.jit(
            jax.shard_map(
                lambda x: jax_cxl.pmean(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
            )
        )

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """Returns the mean of `vector`, (N,), over the ranks."""
        own = jax.dlpack.from_dlpack(vector)
        # The shape of a global array with the vectors of all ranks, one after the other. Each rank
        # has its own vector on its device.
        shape = (len(own) * jax.device_count(),)
        every = jax.make_array_from_single_device_arrays(shape, self._sharding, [own])
        mean = self._program(every).addressable_data(0)
        # PyTorch reads the memory at once: the result has to be there.
        return torch.from_dlpack(mean.block_until_ready())


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    jax_cxl.initialize()
    rank = jax.process_index()
    torch.set_num_threads(1)  # The ranks share the cores of this machine.
    torch.manual_seed(0)  # The same weights on all ranks.
    model = torch.nn.Sequential(
        torch.nn.Linear(_FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average = Average()
    data = torch.Generator().manual_seed(rank)  # Other rows on each rank.
    for step in range(_STEPS.value):
        x = torch.randn(_ROWS, _FEATURES, generator=data)
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], torch.tanh(x[:, 0] - x[:, 1]))
        optimizer.zero_grad()
        loss.backward()
        parameters = list(model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        mean = average(torch.nn.utils.parameters_to_vector(gradients))
        # `mean` is JAX's memory, which nothing may write: the optimizer gets copies.
        for parameter, part in zip(
            parameters, mean.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.grad = part.view_as(parameter).clone()
        optimizer.step()
        if rank == 0 and (step % 20 == 0 or step == _STEPS.value - 1):
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    checksum = torch.nn.utils.parameters_to_vector(model.parameters()).double().sum().item()
    print(f"rank {rank}: the weights add up to {checksum!r}", flush=True)


if __name__ == "__main__":
    app.run(main)
