"""Damage of the numbers of begun saves."""

import contextlib
import io

import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized
from interleaved import X, publish

import jax_cxl
from jax_cxl._commands.store import cli
from jax_cxl._store.memory import catalog, checksum, layout
from jax_cxl._store.memory.section import Section


class BegunTest(harness.StoreTest):
    def damage(self, path, value):
        store = jax_cxl.Store(self.where)
        entry = catalog.find(store._names.devices(), "a")
        first = catalog.geometry_of(store._names.devices(), entry).begun(0)
        with open(path, "r+b") as file:
            file.seek(first)
            file.write(value * layout.BEGUN_BYTES * layout.NUM_CLAIMS)

    def run_command(self, command):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return cli.main([command, self.where]), printed.getvalue()

    @parameterized.product(parity=(0, 1), value=(b"\xff", b"\x01"))
    def test_damage_is_named_and_repaired(self, parity, value):
        paths = [f"{self.path}{i}" for i in range(3 if parity else 1)]
        self.where = f"file:{','.join(paths)}?size=32MiB"
        with jax_cxl.Store(self.where, parity=parity) as store:
            for k in range(3):
                publish(store, "a", X + k)
        del store
        self.damage(paths[-1], value)
        with self.open() as store:
            if parity:
                publish(store, "a", X + 3)
            else:
                with self.assertRaisesRegex(jax_cxl.StoreError, "begun .*store repair"):
                    publish(store, "a", X + 3)
                np.testing.assert_array_equal(store.read("a").tree["x"], X + 2)
        del store
        self.damage(paths[-1], value)
        status, text = self.run_command("check")
        self.assertEqual(status, 1)
        self.assertRegex(text, f"a: number of a begun save .device {len(paths) - 1}, .*damaged")
        self.assertEqual(self.run_command("repair")[0], 0)
        self.assertEqual(self.run_command("check")[0], 0)
        with self.open() as store:
            publish(store, "a", X + 4)
            found = store.read("a")
            self.assertEqual(found.version, 3 + parity)
            np.testing.assert_array_equal(found.tree["x"], X + 4)

    @parameterized.parameters(0, 1)
    def test_the_number_of_a_damaged_version_is_not_used_again(self, parity):
        paths = [f"{self.path}{i}" for i in range(3 if parity else 1)]
        self.where = f"file:{','.join(paths)}?size=32MiB"
        with jax_cxl.Store(self.where, parity=parity) as store:
            for k in range(3):
                publish(store, "a", X + k)
            section = Section.find(store._names.devices(), "a")
            newest = section.all_valid()[0][0].number
            offset = section.geometry.record(newest, 0)
        del store, section
        for path in paths:
            with open(path, "r+b") as file:
                file.seek(offset + 32)
                file.write(b"\xff" * 8)
        for version in (3, 4):  # The second job takes over what the first one knew.
            with self.open() as store:
                self.assertEqual(store.read("a").version, 1 if version == 3 else 3)
                self.assertEqual(store.publish("a", {"x": X + version}), version)
                store.wait("a")
        with self.open() as store:
            store.delete("a")
            self.assertEqual(store.publish("a", {"x": X}), 0)
            self.assertEqual(store.publish("a", {"x": X}, version=1 << 62), 1 << 62)
            self.assertEqual(store.publish("a", {"x": X}), (1 << 62) + 1)

    def test_each_flipped_bit_is_noticed(self):
        for number in (1, 2, 1000, (1 << 40) - 1):
            word = checksum.seal_number(number)
            self.assertEqual(checksum.number_of(word), number)
            for bit in range(64):
                self.assertIsNone(checksum.number_of(word ^ 1 << bit))
        self.assertEqual(checksum.number_of(0), 0)


if __name__ == "__main__":
    absltest.main()
