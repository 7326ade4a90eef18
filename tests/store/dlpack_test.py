"""The codes of dtypes in DLPack are those that JAX uses."""

import ctypes

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from jax_cxl._store.memory import dlpack
from jax_cxl._store.trees import leaves

_NAMES = (*dlpack._OTHER_CODES, "int8", "uint16", "float16", "float32", "complex64", "bool")


class _Tensor(ctypes.Structure):
    """The beginning of a DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    )


class DlpackTest(absltest.TestCase):
    def test_codes(self):
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        for dtype in map(leaves.dtype_of, _NAMES):
            capsule = jnp.zeros(3, dtype).__dlpack__()
            tensor = _Tensor.from_address(address(capsule, b"dltensor"))
            expected = dlpack.code_of(dtype), 8 * dtype.itemsize
            self.assertEqual((tensor.code, tensor.bits), expected, dtype)

    def test_dtypes_without_a_code(self):
        self.assertIsNone(dlpack.code_of(np.dtype(jnp.int4)))


if __name__ == "__main__":
    absltest.main()
