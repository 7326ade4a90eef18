"""Kills jobs that change a table, and its readers, and checks all rows that readers take.

    python -m lab.kills.table_kills --kills=100 [--pool=shm|incoherent]

tests/programs/tables/killed.py changes a table in step after step, as a job of one process and a
job of two in turn. Meanwhile reader processes take rows. Half of the writing jobs die in the middle
of a step, the others at a random instant. In a third of the cases a reader dies too. The next job
continues with the table. A row is wrong if it contains only a part of a step, or more or fewer
steps than it can have at that time. Each new job compares the whole table with the expected result
of the steps. The exit status is 1 if anything is wrong.
"""

import argparse
import json
import pathlib
import random
import re
import sys
import time
import uuid
from typing import Any

import job
import shared_folder

import jax_cxl
from tests.programs.tables import killed

_PROGRAM = "tables/killed.py"
_MODULES = ("numpy", "jax_cxl")
_SIZE = "size=32MiB"


class Sweep:
    """A table, its readers, and the jobs that change it one after another."""

    def __init__(self, where: str, rng: random.Random, options: argparse.Namespace):
        """Makes the table and starts the readers."""
        self._rng, self._options = rng, options
        self._where = where
        self._environment = {}
        if options.pool == "incoherent":
            self._where += "&coherence=flush"
            self._environment = job.incoherent_environment(rng.randrange(1 << 30))
            self._environment["JAX_CXL_POOL"] = "shm:"
        self.found = {"writers killed": 0, "in a step": 0, "readers killed": 0, "takes": 0}
        self.steps = 0
        self.wrong: list[str] = []
        rows = killed.first_rows()
        jax_cxl.Table.create(self._where, "table", rows, trained=True).close()
        self._readers = [self._reader() for _ in range(options.readers)]

    def kill(self) -> None:
        """Starts a writer and kills it; sometimes kills a reader too."""
        processes = 1 + self.found["writers killed"] % 2
        if self._rng.random() < 0.5:
            dying = self._start("--die", processes=processes)
            output, errors = dying.communicate(timeout=self._options.timeout)
            if dying.wait() == 0 or '"died"' not in output:
                self.wrong.append(f"a writer did not die:\n{output[-2000:]}{errors[-2000:]}")
            self.found["in a step"] += 1
        else:
            running = self._start(processes=processes)
            output = ""
            left = self._rng.randrange(1, 9)
            while left and (line := running.stdout.readline()):
                output += line
                left -= '"step"' in line
            time.sleep(self._rng.uniform(0, 0.1))
            running.kill()  # The processes die with the launcher.
            rest, errors = running.communicate()
            output += rest
            if left:
                self.wrong.append(f"a writer has ended:\n{output[-2000:]}{errors[-2000:]}")
        self._look(output)
        self.found["writers killed"] += 1
        if self._rng.random() < 1 / 3:
            victim = self._rng.randrange(len(self._readers))
            self._end(self._readers[victim])
            self._readers[victim] = self._reader()
            self.found["readers killed"] += 1

    def end(self) -> None:
        """Runs a last job, which compares the table, and ends the readers."""
        last = self._start("--steps=3", processes=2)
        output, errors = last.communicate(timeout=self._options.timeout)
        if last.wait():
            self.wrong.append(f"the last job ends with {last.wait()}:\n{output}{errors}")
        self._look(output)
        for reader in self._readers:
            self._end(reader)

    def _start(self, *arguments: str, processes: int) -> Any:
        seed = f"--seed={self._rng.randrange(1 << 30)}"
        return job.start(
            _PROGRAM,
            f"--where={self._where}",
            seed,
            *arguments,
            processes=processes,
            environment=self._environment,
            modules=_MODULES,
        )

    def _reader(self) -> Any:
        more = ("--break",) if getattr(self._options, "break") else ()
        reader = self._start("--read", *more, processes=1)
        line = reader.stdout.readline()
        if '"takes"' not in line:
            reader.kill()
            raise SystemExit(f"a reader has not begun: {line}{reader.communicate()}")
        return reader

    def _end(self, reader: Any) -> None:
        reader.kill()
        output, errors = reader.communicate()
        if "Error" in errors:
            self.wrong.append(f"a reader has ended: {errors[-2000:]}")
        self._look(output)
        takes = [int(number) for number in re.findall(r'"takes": (\d+)', output)]
        self.found["takes"] += max(takes, default=1)

    def _look(self, output: str) -> None:
        self.wrong += re.findall(r'\{"wrong": .*\}', output)
        self.steps = max([self.steps, *map(int, re.findall(r'"step": (\d+)', output))])


def main() -> int:
    """Runs the sweep; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="of writers (default: 20)")
    parser.add_argument("--readers", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument(
        "--pool",
        choices=("file", "shm", "incoherent"),
        default="file",
        help="where the table is (default: file); incoherent emulates caches, see docs/protocol.md",
    )
    parser.add_argument("--seed", type=int, help="seed; by default a new one")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of a writer's death")
    parser.add_argument(
        "--break", action="store_true", help="readers take rows in the middle of a step: must fail"
    )
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    began = time.monotonic()
    with shared_folder.folder("jax_cxl_table_kills.") as folder:
        name = f"table_kills_{uuid.uuid4().hex[:12]}"
        where = f"shm:{name}" if options.pool == "shm" else f"file:{folder}/a"
        try:
            sweep = Sweep(f"{where}?{_SIZE}", random.Random(seed), options)
            for _ in range(options.kills):
                sweep.kill()
                print(json.dumps(sweep.found | {"steps": sweep.steps}), flush=True)
                if sweep.wrong:
                    break
            sweep.end()
        finally:
            pathlib.Path(f"/dev/shm/jax_cxl_store.{name}").unlink(missing_ok=True)
    for wrong in sweep.wrong:
        print(wrong, flush=True)
    minutes = round((time.monotonic() - began) / 60, 1)
    found = {"pool": options.pool, **sweep.found, "steps": sweep.steps, "seed": seed}
    print(json.dumps(found | {"wrong": len(sweep.wrong), "minutes": minutes}), flush=True)
    return int(bool(sweep.wrong))


if __name__ == "__main__":
    sys.exit(main())
