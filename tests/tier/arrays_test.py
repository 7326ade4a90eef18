"""Descriptions of arrays."""

import jax
import jax.numpy as jnp
from absl.testing import absltest

from jax_cxl._tier import arrays


class ArraysTest(absltest.TestCase):
    def test_arrays_that_have_to_stay_on_their_devices(self):
        one = jax.sharding.SingleDeviceSharding(jax.devices()[1])
        for x, committed in (
            (jnp.ones(3), False),
            (jax.device_put(jnp.ones(3), one), True),
            (jax.ShapeDtypeStruct((3,), jnp.float32), False),
            (jax.ShapeDtypeStruct((3,), jnp.float32, sharding=one), True),
        ):
            spec = arrays.spec_of("x", x)
            self.assertEqual(spec.committed, committed, x)
            self.assertEqual(spec.wanted_sharding, one if committed else None)

    def test_one_set_of_devices(self):
        put = lambda n: jax.device_put(jnp.ones(3), jax.devices()[n])  # noqa: E731
        specs = [arrays.spec_of(name, put(n)) for name, n in (("a", 0), ("b", 0), ("c", 1))]
        arrays.check_one_set_of_devices(specs[:2])
        with self.assertRaisesRegex(ValueError, "a and c are on different devices"):
            arrays.check_one_set_of_devices(specs)


if __name__ == "__main__":
    absltest.main()
