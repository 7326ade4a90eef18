"""Tensors of PyTorch, as NumPy arrays over the same memory."""

import contextlib
from typing import Any

import numpy as np

from jax_cxl._store import frameworks
from jax_cxl._store.trees import leaves


def is_tensor(x: Any) -> bool:
    torch = frameworks.torch()
    return torch is not None and isinstance(x, torch.Tensor)


def is_on_gpu(x: Any) -> bool:
    """Whether a tensor is on an NVIDIA GPU."""
    return bool(x.device.type == "cuda" and not frameworks.torch().version.hip)


def dtype(x: Any) -> np.dtype:
    torch = frameworks.torch()
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
    found: np.dtype | None = None
    # PyTorch's names of other dtypes are not those of NumPy's or JAX's.
    with contextlib.suppress(TypeError):
        found = leaves.dtype_of(str(x.dtype).removeprefix("torch."))
    if not plain or x.is_conj() or x.is_neg() or found is None:
        raise TypeError(
            f"a {type(x).__name__} of {x.dtype} cannot be used: it must be a dense tensor of a"
            " dtype that NumPy or JAX has"
        )
    return found


def array(x: Any) -> np.ndarray:
    """Returns an array over the memory of a tensor of the host."""
    torch = frameworks.torch()
    of = dtype(x)
    if x.device.type != "cpu":
        raise TypeError(f"a tensor on {x.device} cannot be used: it must be on the CPU")
    if of.isbuiltin == 1:
        found: np.ndarray = x.detach().numpy()
        return found
    # NumPy knows the dtype from ml_dtypes, and PyTorch does not know that: pass the bits.
    bits = torch.uint8 if of.itemsize == 1 else torch.int16
    return x.detach().view(bits).numpy().view(of)


def writes(x: Any) -> int | None:
    """Returns how often PyTorch has written to a tensor; None if PyTorch does not count."""
    if not is_tensor(x) or x.is_inference():
        return None
    count: int = x._version
    return count


def to_save(x: Any) -> np.ndarray:
    """Returns the values of a tensor. The array is a view unless the tensor is on a GPU."""
    torch = frameworks.torch()
    if type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type in ("cpu", "cuda"):
        x = x.detach().cpu().resolve_conj().resolve_neg()
    return array(x)
