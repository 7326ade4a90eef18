"""Damage of the table of sessions."""

import contextlib
import io

import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized
from interleaved import X, publish

import jax_cxl
from jax_cxl._commands.store import cli
from jax_cxl._store.memory import layout

_DAMAGED = "table of sessions of this store is damaged.*store repair"


class DamagedSessionsTest(harness.StoreTest):
    def damage(self, path, value, slots):
        with open(path, "r+b") as file:
            file.seek(layout.SESSIONS_OFFSET)
            file.write(value * layout.SESSION_BYTES * slots)

    def run_command(self, command):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return cli.main([command, self.where]), printed.getvalue()

    @parameterized.product(parity=(0, 1), value=(b"\xff", b"\x01"), slots=(7, 512))
    def test_damage_is_named_and_repaired(self, parity, value, slots):
        paths = [f"{self.path}{i}" for i in range(3 if parity else 1)]
        self.where = f"file:{','.join(paths)}?size=48MiB"
        with jax_cxl.Store(self.where, parity=parity) as store:
            publish(store, "a", X)
        del store
        self.damage(paths[-1], value, slots)
        with self.open() as store:
            with self.assertRaisesRegex(jax_cxl.CxlError, _DAMAGED):
                publish(store, "b", X)  # It needs the lock.
            if slots < 512:  # A lease needs one slot.
                np.testing.assert_array_equal(store.read("a").tree["x"], X)
            else:
                with self.assertRaisesRegex(jax_cxl.CxlError, _DAMAGED):
                    store.read("a")
        del store
        status, text = self.run_command("check")
        self.assertNotEqual(status, 0)
        self.assertRegex(text, f"session .device {len(paths) - 1}, offset 0x3000. is damaged")
        self.assertEqual(self.run_command("repair")[0], 0)
        status, text = self.run_command("check")
        self.assertEqual((status, text.splitlines()[-1]), (0, "nothing is damaged"))
        with self.open() as store:
            publish(store, "b", X + 1)
            np.testing.assert_array_equal(store.read("a").tree["x"], X)
            np.testing.assert_array_equal(store.read("b").tree["x"], X + 1)


if __name__ == "__main__":
    absltest.main()
