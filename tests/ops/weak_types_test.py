"""Results have the dtypes and the weak types of `jax.lax`."""

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized
from jax import lax

import jax_cxl

_PERM = [(0, 1), (1, 0)]


def _sent(module, x, axis):
    like = jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x))
    return module.precv(module.psend(x, axis, _PERM), like, axis, _PERM)


def _ragged(module, x, axis):
    return module.ragged_all_to_all(x, x, *[jnp.array([0, 1])] * 4, axis_name=axis)


# Name -> how to call a collective of `jax.lax` or `jax_cxl` over an axis of two ranks.
_REDUCTIONS = ("psum", "pmean", "pmax", "pmin")
_COLLECTIVES = {
    **{
        name: lambda module, x, axis, name=name: getattr(module, name)(x, axis)
        for name in (*_REDUCTIONS, "all_gather", "psum_scatter")
    },
    **{
        f"{name}, groups": lambda module, x, axis, name=name: getattr(module, name)(
            x, axis, axis_index_groups=[[0], [1]]
        )
        for name in _REDUCTIONS
    },
    **{
        f"{name}, tiled": lambda module, x, axis, name=name: getattr(module, name)(
            x, axis, tiled=True
        )
        for name in ("all_gather", "psum_scatter")
    },
    "all_gather, invarying": lambda module, x, axis: module.all_gather(x, axis, to="invarying"),
    "all_to_all": lambda module, x, axis: module.all_to_all(x, axis, 0, 1),
    "all_to_all, same": lambda module, x, axis: module.all_to_all(x, axis, 0, 0),
    "all_to_all, tiled": lambda module, x, axis: module.all_to_all(x, axis, 0, 1, tiled=True),
    "pswapaxes": lambda module, x, axis: module.pswapaxes(x, axis, 0),
    "ppermute": lambda module, x, axis: module.ppermute(x, axis, _PERM),
    "pshuffle": lambda module, x, axis: module.pshuffle(x, axis, [1, 0]),
    "pbroadcast": lambda module, x, axis: module.pbroadcast(x, axis, 0),
    "psend, precv": _sent,
    "ragged_all_to_all": _ragged,
}


def _rank(axis):
    return lax.axis_index(axis)


# What is passed, made from a shape and an axis.
_OPERANDS = {
    "weak float": lambda shape, axis: lax.broadcast(1.5 * _rank(axis), shape),
    "weak int": lambda shape, axis: lax.broadcast(jnp.where(_rank(axis) > 0, 3, 2), shape),
    "float32": lambda shape, axis: lax.broadcast(_rank(axis).astype(jnp.float32), shape),
    "bfloat16": lambda shape, axis: lax.broadcast(_rank(axis).astype(jnp.bfloat16), shape),
    "bool": lambda shape, axis: lax.broadcast(_rank(axis) > 0, shape),
    **{f"Python {type(x).__name__}": lambda shape, axis, x=x: x for x in (2.5, 3, True, 1j)},
    **{
        f"NumPy {np.dtype(dtype)}": lambda shape, axis, dtype=dtype: np.ones(shape, dtype)
        for dtype in (np.float32, np.float64, np.int8, np.int64, np.bool)
    },
    "NumPy scalar": lambda shape, axis: np.float64(2),
    "NumPy True": lambda shape, axis: np.True_,
    "constant": lambda shape, axis: _CONSTANTS[0] if shape == () else _CONSTANTS[1],
    "weak constant": lambda shape, axis: _CONSTANTS[2],
}
_CONSTANTS = (np.float32(1), jnp.ones((2, 2)), jnp.asarray(2.5))
# What jax_cxl refuses, although jax.lax does not (docs/collectives.md).
_REFUSED = {
    *((name, "Python complex") for name in ("pmax", "pmax, groups", "pmin", "pmin, groups")),
    *((name, "bool") for name in ("psum_scatter", "psum_scatter, tiled")),
    *((name, "NumPy bool") for name in ("psum_scatter", "psum_scatter, tiled")),
}


def _described(module, name, x, axis):
    """Returns dtype, shape and weak type of a result; None if the collective raises an error."""
    if name == "ragged_all_to_all" and not np.ndim(x):
        return None  # jax.lax does not check that there are rows.
    try:
        aval = jax.typeof(_COLLECTIVES[name](module, x, axis))
    except Exception:  # jax.lax raises errors of any type.
        return None
    return str(aval.dtype), aval.shape, bool(aval.weak_type)


def _results(module, axis):
    """Returns what all collectives do with all operands, inside of a function over an axis."""
    return {
        (name, kind, shape): _described(module, name, of(shape, axis), axis)
        for name in _COLLECTIVES
        for kind, of in _OPERANDS.items()
        for shape in ((), (2, 2))
        if (name, kind) not in _REFUSED
    }


class WeakTypesTest(parameterized.TestCase):
    def compare(self, wrap):
        """Compares all results; `wrap` maps a function over the axis "i"."""
        expected, found = {}, {}

        def body(x):
            expected.update(_results(lax, "i"))
            found.update(_results(jax_cxl, "i"))
            return x

        jax.make_jaxpr(wrap(body))(np.zeros(2, np.float32))
        expected = {
            case: result
            for case, result in expected.items()
            if result is not None and not self.is_wrong(case, result)
        }
        different = {case: (found[case], of) for case, of in expected.items() if found[case] != of}
        self.assertEmpty(different)
        return {name for name, *_ in expected}

    def is_wrong(self, case, result):
        """Whether jax.lax returns another shape than it documents.

        Its `all_to_all` over an axis of vmap does so if the operand is equal on all ranks.
        """
        name, _, shape = case
        return name.startswith(("all_to_all", "pswapaxes")) and len(result[1]) != len(shape)

    @parameterized.parameters(False, True)
    def test_over_a_mesh(self, check_vma):
        def wrap(body):
            mesh = harness.mesh((2,))
            return jax.shard_map(
                body, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=check_vma
            )

        compared = self.compare(wrap)
        self.assertContainsSubset({*_REDUCTIONS, "all_to_all", "ppermute", "all_gather"}, compared)

    def test_over_an_axis_of_vmap(self):
        compared = self.compare(lambda body: jax.vmap(body, axis_name="i"))
        self.assertContainsSubset({*_REDUCTIONS, "all_to_all", "ppermute", "all_gather"}, compared)

    def test_under_the_takeover(self):
        # On CPUs, XLA does not have the others.
        others = ("psend, precv", "pbroadcast", "ragged_all_to_all")
        names = [name for name in _COLLECTIVES if name not in others]

        def body(_):
            x = _OPERANDS["weak float"]((2, 2), "i")
            return {name: _COLLECTIVES[name](lax, x, "i") for name in names}

        mapped = jax.shard_map(
            body,
            mesh=harness.mesh((2,)),
            in_specs=jax.P(),
            out_specs=jax.P("i"),
            check_vma=False,
        )
        x = np.zeros(2, np.float32)
        expected = jax.eval_shape(mapped, x)
        with jax_cxl.replace_collectives():
            found = jax.jit(mapped)(x)
        for name in names:
            a, b = found[name], expected[name]
            self.assertEqual((a.dtype, a.weak_type), (b.dtype, b.weak_type), name)

    def test_a_reduction_of_weak_numbers_times_bfloat16(self):
        def body(x):
            return x * jax_cxl.pmax(2.5, "i"), x * jax_cxl.psum(1.5 * _rank("i"), "i")

        for check_vma, dtype in ((False, jnp.float32), (True, jnp.bfloat16)):
            found = harness.run(body, np.ones((4, 2), jnp.bfloat16), check_vma=check_vma)
            self.assertEqual([x.dtype for x in found], [dtype, dtype])
            np.testing.assert_array_equal(found[1], np.full((4, 2), 9, dtype))

    def test_a_sum_of_true_is_an_array(self):
        def body(x):
            total = jax_cxl.psum(True, "i")
            return total, jax_cxl.psum(np.array([True, False]), "i"), x

        total, both, _ = harness.run(body, np.zeros(4, np.int8))
        harness.check_equal(total, np.full(4, 4, np.int32))
        harness.check_equal(both, np.array([[4, 0]] * 4, np.int32))


if __name__ == "__main__":
    absltest.main()
