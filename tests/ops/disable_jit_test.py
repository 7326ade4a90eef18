"""Every public function gives the same values under `jax.disable_jit()` as without it."""

import functools
import inspect
import re
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest
from jax.ad_checkpoint import checkpoint_name

import jax_cxl
from jax_cxl.ops import start_done

_PERM = [(0, 1), (1, 0)]
_EXPERTS = np.array([[1], [0]])


def _ragged(f, x):
    sizes, starts = jnp.array([1, 1]), jnp.array([0, 1])
    to = jnp.full(2, jax.lax.axis_index("i"))
    return f(x, jnp.zeros_like(x), starts, sizes, to, sizes, axis_name="i")


def _combined(f, x):
    rows, handle = jax_cxl.moe_dispatch(x, _EXPERTS, "i", num_experts=2)
    return f(rows, jnp.ones((2, 1)), handle)


# Operation -> how to call it, or to start it, with a rank's value of shape (2, 4).
_ON_RANKS = {
    **dict.fromkeys(
        (
            *("all_gather", "barrier", "broadcast", "gather", "pmax", "pmean", "pmin", "psum"),
            *("pargmax", "pargmin", "pexscan", "pscan", "psum_scatter", "reduce", "scatter"),
        ),
        lambda f, x: f(x, "i"),
    ),
    **dict.fromkeys(("pand", "por"), lambda f, x: f(x.astype(jnp.int32), "i")),
    "all_to_all": lambda f, x: f(x, "i", 0, 1),
    "moe_combine": _combined,
    "moe_dispatch": lambda f, x: f(x, _EXPERTS, "i", num_experts=2),
    "pbroadcast": lambda f, x: f(x, "i", 1),
    "ppermute": lambda f, x: f(x, "i", _PERM),
    "pshuffle": lambda f, x: f(x, "i", [1, 0]),
    "pswapaxes": lambda f, x: f(x, "i", 0),
    "psend": lambda f, x: jax_cxl.precv(
        f(x, "i", _PERM), jax.ShapeDtypeStruct(x.shape, x.dtype), "i", _PERM
    ),
    "ragged_all_to_all": _ragged,
    "take_rows": lambda f, x: f(x, jnp.array([3, 0, 9]), "i"),
}


def _started(operation, of, x):
    return of(functools.partial(jax_cxl.start, operation), x).done()


def _squares(f, x):
    return jnp.sum(f(x) ** 2)


# Public functions that move no data of a program.
_OTHERS = {
    *("expert_placement", "explain", "initialize", "make_mesh", "regroup", "run", "shutdown"),
    *("stats",),
}


class DisableJitTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        self.store = jax_cxl.Store(f"file:{folder}/store?size=128MiB")
        self.snapshots = jax_cxl.Snapshots(f"file:{folder}/snapshots?size=64MiB")

    def calls_of_ranks(self):
        """Returns functions without arguments, by the names of the public functions they call."""
        of_ranks = {"psend, precv": lambda v: _ON_RANKS["psend"](jax_cxl.psend, v)}
        for name, of in _ON_RANKS.items():
            operation = getattr(jax_cxl, name)
            of_ranks[name] = functools.partial(of, operation)
            if operation in start_done.startable():
                of_ranks[f"start {name}"] = functools.partial(_started, operation, of)
        for name in ("psum", "all_gather", "ppermute", "all_to_all"):
            squares = functools.partial(_squares, of_ranks[name])
            of_ranks[f"gradient of {name}"] = jax.grad(squares)

        def on_ranks():
            mapped = jax.shard_map(
                lambda v: jax.tree.map(
                    lambda y: y[None], {k: f(v[0]) for k, f in of_ranks.items()}
                ),
                mesh=harness.mesh((2,)),
                in_specs=jax.P("i"),
                out_specs=jax.P("i"),
                check_vma=False,
            )
            return jax.jit(mapped)(harness.values(2, 4, ranks=2))

        return {", ".join(of_ranks): on_ranks, "replace_collectives": self.replaced}

    def replaced(self):
        with jax_cxl.replace_collectives():
            total = jax.shard_map(
                lambda v: jax.lax.psum(v, "i"),
                mesh=harness.mesh((2,)),
                in_specs=jax.P("i"),
                out_specs=jax.P(),
            )
            return jax.jit(total)(np.arange(4.0, dtype=np.float32))

    def calls_of_stores(self):
        store = self.store
        tree = {"w": jnp.arange(6.0), "b": np.arange(3)}
        table = jax_cxl.Table.create(store, "table", harness.values(5, ranks=9), trained=True)
        ids = jnp.array([3, -1, 12])
        ones = jnp.ones((3, 5))

        def layer(x, w):
            return checkpoint_name(x, "x") * w, None

        body = jax_cxl.offload_residuals(layer, store, names="x", calls=2, prevent_cse=False)

        def loss(ws):
            return jax.lax.scan(body, jnp.arange(3.0), ws)[0].sum()

        class Halving:
            """An optimizer whose values have the same bits with and without fusions."""

            init = staticmethod(lambda params: jax.tree.map(jnp.zeros_like, params))

            @staticmethod
            def update(gradients, state, params=None):
                return jax.tree.map(lambda g: -g / 2, gradients), state

        def pooled():
            name = f"pooled {bool(jax.config.jax_disable_jit)}"
            optimizer = jax_cxl.pooled(Halving, store, name)
            state = optimizer.init({"w": jnp.ones(4)})
            made, _ = optimizer.step({"w": jnp.ones(4)}, {"w": jnp.ones(4)}, state)
            optimizer.wait()
            return made

        def published():
            store.publish("tree", tree)
            store.flush("tree")
            with store.view("tree", tree) as view:
                return [store.read("tree").tree, store.read("tree", tree).tree, view.tree["w"] + 1]

        def saved():
            step = int(jax.config.jax_disable_jit)
            self.snapshots.save(step, tree)
            self.snapshots.wait()
            return self.snapshots.restore(step, tree)

        def moved():
            handles = jax_cxl.offload({"w": jnp.arange(6.0)}, store, "moved")
            return jax_cxl.fetch(handles), jax_cxl.prefetch(handles).result()

        def trained():
            before = table.read()["rows"]
            table.add(ids, ones)
            table.update(ids, ones, lambda rows, sums, state: (rows - sums, state))
            return before, table.read()["rows"]

        return {
            "Table.take": lambda: jax.jit(table.take)(ids),
            "Table.take, outside of jit": lambda: table.take(ids),
            "start of Table.take": lambda: jax.jit(lambda i: jax_cxl.start(table.take, i).done())(
                ids
            ),
            "Table.take, vmap": lambda: jax.vmap(table.take)(ids),
            "gradient of Table.take": lambda: jax.grad(
                lambda d: jnp.sum(table.take(ids, fill_value=0, delta=d) ** 2)
            )(ones),
            "Table.add, update": trained,
            "offload_residuals": lambda: jax.jit(jax.grad(loss))(jnp.arange(6.0).reshape(2, 3)),
            "offload_residuals, outside of jit": lambda: jax.grad(loss)(jnp.ones((2, 3))),
            "pooled": pooled,
            "Store": published,
            "Snapshots": saved,
            "offload, fetch, prefetch": moved,
            "process_gather": lambda: jax_cxl.process_gather(tree),
        }

    def test_every_public_function_is_called(self):
        called = re.findall(r"\w+", " ".join({**self.calls_of_ranks(), **self.calls_of_stores()}))
        functions = {name for name in jax_cxl.__all__ if inspect.isfunction(getattr(jax_cxl, name))}
        self.assertEqual(functions - {*called}, _OTHERS)

    def test_stores(self):
        self.check_calls(self.calls_of_stores())

    @pytest.mark.long
    def test_collectives(self):
        self.check_calls(self.calls_of_ranks())

    def check_calls(self, calls):
        for name, call in calls.items():
            with self.subTest(name[:60]):
                expected = call()
                with jax.disable_jit():
                    found = call()
                self.assertEqual(jax.tree.structure(found), jax.tree.structure(expected))
                for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                    harness.check_equal(np.asarray(a), np.asarray(b))


if __name__ == "__main__":
    absltest.main()
