"""Restores the snapshot of the job before, checks every bit, and saves the next one.

Runs under `jax_cxl.launch`. `--step=N` restores step N - 1, unless N is 1, and saves step N. The
next job may have other numbers of processes and devices. The shardings change with each step, too.
"""

import jax
import ml_dtypes
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the snapshots.", required=True)
_PARITY = flags.DEFINE_integer("parity", 0, "As for Snapshots.")
_STEP = flags.DEFINE_integer("step", 1, "The step to save.")

# One, two, three and four devices divide these.
_SHAPES = {"large": (1200, 1212), "narrow": (24, 12), "bytes": (12, 36)}
_DTYPES = {"large": np.float32, "narrow": ml_dtypes.bfloat16, "bytes": np.uint8}
_SPECS = (jax.P("i"), jax.P(None, "i"), jax.P())


def values(step):
    rng = np.random.default_rng(step)
    return {
        name: rng.integers(0, 256, shape).astype(_DTYPES[name]) for name, shape in _SHAPES.items()
    }


def shardings(mesh, step):
    return {
        name: jax.NamedSharding(mesh, _SPECS[(step + i) % len(_SPECS)])
        for i, name in enumerate(_SHAPES)
    }


def main(_):
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    step = _STEP.value
    with jax_cxl.Snapshots(_WHERE.value, parity=_PARITY.value) as snapshots:
        if step > 1:
            assert snapshots.latest() == step - 1, snapshots.latest()
            saved = values(step - 1)
            # Other shardings than those of the snapshot.
            like = {
                name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings(mesh, step)[name])
                for name, x in saved.items()
            }
            found = snapshots.restore(step - 1, like | {"host": np.zeros(5, np.int64), "step": 0})
            assert found["step"] == step - 1
            np.testing.assert_array_equal(found["host"], np.arange(5) * (step - 1))
            for name, x in saved.items():
                for shard in found[name].addressable_shards:
                    got = np.asarray(shard.data)
                    assert got.tobytes() == x[shard.index].tobytes(), (name, shard.index)
        tree = {
            name: jax.make_array_from_callback(x.shape, shardings(mesh, step)[name], x.__getitem__)
            for name, x in values(step).items()
        }
        snapshots.save(step, tree | {"host": np.arange(5) * step, "step": step})
        snapshots.wait()
    print(f"step {step} saved by {jax.device_count()} devices", flush=True)


if __name__ == "__main__":
    app.run(main)
