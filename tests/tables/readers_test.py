"""Tables in `python -m jax_cxl status`: who reads them, and how many rows a second."""

import contextlib
import io
import json
import os
import threading

import jax
import numpy as np
from absl.testing import absltest
from tables import StoreCase, random_rows

import jax_cxl
from jax_cxl._commands.status import status


def _run(*arguments):
    """Returns the exit status, the output, and the messages about other stores and jobs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = status.main(arguments)
    return code, out.getvalue(), err.getvalue()


class StatusTest(StoreCase):
    def setUp(self):
        super().setUp()
        self.file = f"file:{self.folder}/a"

    def tables(self, *arguments):
        """Returns the tables of this test's store in the JSON, by name."""
        code, text, problems = _run(*arguments, "--json")
        # Without a target, the status is 1 if a job of another test has a culprit.
        self.assertIn(code, (0,) if arguments else (0, 1), problems)
        found = json.loads(text)
        return {of["name"]: of for of in found["tables"] if of["store"].startswith(self.file)}

    def test_readers_and_their_rows(self):
        table = self.create(random_rows((997, 5), "float32"))
        self.create(random_rows((10, 5), "float32"), name="closed").close()
        trained = self.create(random_rows((10, 5), "float32"), name="trained", trained=True)
        self.store.publish("no table", {"a": np.zeros(3)})
        take = jax.jit(table.take)
        ids = np.arange(997, dtype=np.int32)
        stop = threading.Event()

        def read():
            while not stop.wait(0.02):
                take(ids).block_until_ready()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for target in ((self.where,), (str(self.folder / "a"),), (str(os.getpid()),), ()):
                found = self.tables(*target)
                self.assertEqual({*found}, {"table", "trained", "closed"}, target)
                (own,) = found["table"]["readers"]
                self.assertIn(f"process {os.getpid()} ", own["process"])
                self.assertGreater(own["rows"], 997)
                # The thread takes all 997 rows at most 50 times a second, and less often on a busy
                # machine. The process publishes its counts with heartbeats. So a second can show
                # what it took in a longer time.
                self.assertBetween(own["rows_per_s"], 1, 2 * 50 * 997)
                self.assertEqual(found["closed"]["readers"], [])
                (of_trained,) = found["trained"]["readers"]
                self.assertEqual((of_trained["rows"], of_trained["rows_per_s"]), (0, 0))
        finally:
            stop.set()
            reader.join()
        code, text, _ = _run(self.where)
        self.assertEqual(code, 0)
        self.assertRegex(
            text, rf"table table in {self.where.replace('?', '.')}: \d+ bytes, 1 reader, "
        )
        self.assertIn(f"process {os.getpid()} ", text)
        table.close()
        trained.close()
        self.assertEqual(self.tables(self.where)["table"]["readers"], [])

    def test_the_count_of_an_earlier_lease_is_not_that_of_the_next(self):
        table = self.create(random_rows((997, 5), "float32"))
        table.take(np.arange(500)).block_until_ready()
        table.close()
        other = self.create(random_rows((8, 5), "float32"), name="other")
        (reader,) = self.tables(self.where)["other"]["readers"]
        self.assertEqual(reader["rows"], 0)
        other.close()

    def test_stores_of_several_devices_have_no_tables(self):
        two = f"file:{self.folder}/one,{self.folder}/two?size=64MiB"
        halves = f"file:{self.folder}/halves?size=64MiB&devices=2"
        self.store._names.made()
        stores = [jax_cxl.Store(where) for where in (two, halves)]
        for store in stores:
            store.publish("no table", {"a": np.zeros(3)})
        # Other tests may have left jobs and tables in this process, so there may be other messages.
        _, *said = _run(str(os.getpid()))
        for name in ("one", "two", "halves"):
            self.assertNotIn(f"{self.folder}/{name}", "".join(said))

    def test_a_store_without_tables_or_that_is_damaged(self):
        self.store.publish("no table", {"a": np.zeros(3)})
        self.store.flush("no table")
        code, *said = _run(self.where)
        self.assertEqual(code, 2)
        self.assertIn("no job or table found", "".join(said))
        damaged = self.folder / "damaged"
        damaged.write_bytes((self.folder / "a").read_bytes()[: 1 << 20])
        code, *said = _run(str(damaged))
        self.assertEqual(code, 2)
        self.assertIn("damaged", "".join(said))


if __name__ == "__main__":
    absltest.main()
