"""Measures the cost of saving and restoring a training state, with Snapshots and with Orbax.

    python -m jax_cxl.launch -n 2 benchmarks/snapshots/snapshot_costs.py --json FILE

The state has float32 arrays, sharded over the processes. There are three kinds of saves: by
`jax_cxl.Snapshots`, and by Orbax's asynchronous checkpointer to /dev/shm and to a disk. Each round
has steps without a save, steps with each kind of save, saves without steps, and restores. A step
computes matrix products for about `--step-ms` on one core of each process, or on a GPU. With
`--idle` it sleeps instead, so that a core is free.

"hidden" is the share of the time of a save that does not lengthen the steps. On GPUs "bound" is the
time that the copy engines need for the bytes of the save, and "checksums alone" the time that the
kernels need for its checksums. The other rows are the times from the start of a save until a
part of the save is done, on the first process.
"""

import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl
from jax_cxl._commands.measuring import report, results_file
from jax_cxl._store import agreement
from jax_cxl._store.memory import layout
from jax_cxl._store.writing import device_copies

try:
    import orbax.checkpoint as ocp
except ImportError:
    ocp = None

_MIB = flags.DEFINE_integer("mib", 256, "Size of the state.")
_LEAVES = flags.DEFINE_integer("leaves", 64, "Arrays of the state.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds.")
_STEP_MS = flags.DEFINE_float("step_ms", 300, "About how long a step takes.")
_STEPS = flags.DEFINE_integer("steps", 3, "Steps of a measurement.")
_EVERY = flags.DEFINE_integer("every", 1, "Steps from one save to the next.")
_IDLE = flags.DEFINE_bool("idle", False, "Steps sleep instead of computing.")
_ORBAX = flags.DEFINE_bool("orbax", True, "Whether to measure Orbax too.")
_COHERENCE = flags.DEFINE_string("coherence", "coherent", "Of the memory of Snapshots.")
_CHUNK_MIB = flags.DEFINE_integer("chunk_mib", 0, "Of a copy from a GPU; 0: the library's choice.")
_UNDER_WAY = flags.DEFINE_integer("under_way", 0, "Copies at a time; 0: the library's choice.")
_DISK = flags.DEFINE_string("disk", tempfile.gettempdir(), "Folder on a disk.")
_JSON = flags.DEFINE_string("json", None, "File for the results.")


class Work:
    """Makes steps that take about `--step-ms` each."""

    def __init__(self):
        size = 512 if jax.default_backend() == "cpu" else 8192
        self._x = jnp.ones((size, size), jnp.bfloat16 if size > 512 else jnp.float32)
        # The number of products is static, because with a number on the device, a GPU would ask the
        # host after each product whether to go on.
        self._run = jax.jit(
            lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ x) * 0.5, x)[0, 0],
            static_argnums=1,
        )
        float(self._run(self._x, 20))
        began = time.perf_counter()
        float(self._run(self._x, 20))
        self._count = max(1, round(20 * _STEP_MS.value / 1000 / (time.perf_counter() - began)))
        float(self._run(self._x, self._count))

    def step(self) -> None:
        if _IDLE.value:
            time.sleep(_STEP_MS.value / 1000)
        else:
            float(self._run(self._x, self._count))  # As a program reads its loss.


class Ours:
    """Saves by jax_cxl.Snapshots in /dev/shm."""

    def __init__(self, state: Any):
        size = jax_cxl.Snapshots.bytes_needed(state)
        self.path = pathlib.Path("/dev/shm/jax_cxl_snapshot_costs")
        self._snapshots = jax_cxl.Snapshots(
            f"file:{self.path}?size={size}&coherence={_COHERENCE.value}"
        )

    def save(self, step: int, state: Any) -> None:
        self._snapshots.save(step, state)

    def wait(self) -> None:
        self._snapshots.wait()

    def restore(self, step: int, like: Any) -> Any:
        return self._snapshots.restore(step, like)

    def only_copy(self, state: Any) -> None:
        """Only copies the state's bytes from this process's GPUs, for the figure "bound"."""
        devices = self._snapshots._publisher.section.devices
        copies = devices.copies
        under_way, offset = [], 0
        for array in jax.tree.leaves(state):
            for shard in array.addressable_shards:
                source, target = shard.data.unsafe_buffer_pointer(), devices.core.base + offset
                ordinal = shard.device.local_hardware_id
                under_way.append(copies.start(ordinal, [(source, target, shard.data.nbytes)]))
                offset += shard.data.nbytes
        for copy in under_way:
            copies.wait(copy)

    def only_checksums(self, state: Any) -> None:
        """Computes checksums of whole blocks on this process's GPUs, and does nothing else."""
        shards = [shard for x in jax.tree.leaves(state) for shard in x.addressable_shards]
        by_gpu: dict[int, list[int]] = {}
        for shard in shards:
            blocks = range(
                0, shard.data.nbytes // layout.BLOCK_BYTES * layout.BLOCK_BYTES, layout.BLOCK_BYTES
            )
            start = shard.data.unsafe_buffer_pointer()
            addresses = by_gpu.setdefault(shard.device.local_hardware_id, [])
            addresses += [start + block for block in blocks]
        copies = self._snapshots._publisher.section.devices.copies
        copies.checksums(list(by_gpu.items()), layout.BLOCK_BYTES)

    def phases(self, step: int, state: Any) -> dict[str, float]:
        """Saves; returns the seconds from the start until each part of the save was done."""
        done: dict[str, float] = {}
        devices = self._snapshots._publisher.section.devices
        copies = devices.copies
        began = time.perf_counter()

        def note(name: str) -> None:
            done[name] = time.perf_counter() - began

        class Noted:
            """Wraps `copies`, and notes when the first copy starts and when the last one ends."""

            def start(self, *arguments: Any) -> int:
                if "first copy started" not in done:
                    note("first copy started")
                number: int = copies.start(*arguments)
                return number

            def wait(self, number: int) -> None:
                copies.wait(number)
                note("last copy ended")

            def checksums(self, *arguments: Any) -> list[list[int]]:
                checksums: list[list[int]] = copies.checksums(*arguments)
                note("checksums computed")
                return checksums

        devices._copies = Noted()
        try:
            self.save(step, state)
            note("save returned")
            saving = self._snapshots._publisher._saving
            assert saving is not None
            saving.result()
            note("own part written")
            self.wait()
            note("valid")
        finally:
            devices._copies = copies
        return done

    def close(self) -> None:
        self._snapshots.close()
        self.path.unlink(missing_ok=True)


class Orbax:
    """Saves by Orbax's CheckpointManager. The program goes on during a save."""

    def __init__(self, folder: str):
        self._folder = pathlib.Path(folder) / "snapshot_costs"
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def save(self, step: int, state: Any) -> None:
        self._manager.save(step, args=ocp.args.StandardSave(state))

    def wait(self) -> None:
        self._manager.wait_until_finished()

    def restore(self, step: int, like: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.StandardRestore(like))

    def close(self) -> None:
        self._manager.close()
        if jax.process_index() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)


def make_state() -> dict[str, jax.Array]:
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    rows = _MIB.value * 2**20 // _LEAVES.value // 4096
    random = jax.jit(
        lambda key: jax.random.uniform(key, (rows, 1024), np.float32), out_shardings=sharding
    )
    keys = jax.random.split(jax.random.key(0), _LEAVES.value)
    return {f"leaf {i}": random(keys[i]) for i in range(_LEAVES.value)}


def timed(run: Any) -> float:
    """Calls `run` on all processes at once; returns the seconds until all have finished."""
    agreement.gather([0])
    began = time.perf_counter()
    run()
    agreement.gather([0])
    return time.perf_counter() - began


def main(_) -> None:
    load = os.getloadavg()[0]
    if _CHUNK_MIB.value:
        device_copies._CHUNK_BYTES = _CHUNK_MIB.value << 20
    if _UNDER_WAY.value:
        device_copies._CHUNKS_UNDER_WAY = _UNDER_WAY.value
    jax_cxl.initialize()
    state = make_state()
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    work = Work()
    ways: dict[str, Ours | Orbax] = {"snapshots": Ours(state)}
    if ocp is None:
        print("orbax-checkpoint is not installed: no rows of it", flush=True)
    elif _ORBAX.value:
        ways |= {"orbax, /dev/shm": Orbax("/dev/shm"), "orbax, disk": Orbax(_DISK.value)}
    found: dict[str, list[float]] = {}
    number = 0

    def next_number() -> int:
        nonlocal number
        number += 1
        return number

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    for round_ in range(-1, _ROUNDS.value):  # The first one warms up.
        steps = timed(lambda: [work.step() for _ in range(_STEPS.value)]) / _STEPS.value
        if round_ >= 0:
            note("step", steps)
        for name, way in ways.items():

            def with_steps(way=way):
                for step in range(_STEPS.value):
                    if step % _EVERY.value == 0:
                        way.save(next_number(), state)
                    work.step()
                way.wait()

            def alone(way=way):
                way.save(next_number(), state)
                way.wait()

            both = timed(with_steps) / _STEPS.value
            save = timed(alone)
            restored: list[Any] = []
            restore = timed(lambda way=way, out=restored: out.append(way.restore(number, like)))
            # Compare all values, but only once: this takes longer than a restore. Every restore
            # checks the checksums of all blocks.
            if round_ == _ROUNDS.value - 1:
                for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
                    np.testing.assert_array_equal(a.addressable_data(0), b.addressable_data(0))
            if round_ >= 0:
                note(f"{name}: save", save)
                note(f"{name}: restore", restore)
                note(f"{name}: step with a save", both)
                note(f"{name}: hidden", 1 - (both - steps) * _EVERY.value / save)
                note(f"{name}: step with a save / step", both / steps)
        if round_ >= 0 and jax.default_backend() != "cpu":
            ours = ways["snapshots"]
            assert isinstance(ours, Ours)
            note("bound", timed(lambda ours=ours: ours.only_copy(state)))
            note("checksums alone", timed(lambda ours=ours: ours.only_checksums(state)))
            agreement.gather([0])
            for name, seconds in ours.phases(next_number(), state).items():
                note(f"snapshots: {name}", seconds)
    for way in ways.values():
        way.close()
    if jax.process_index() == 0:
        rows = [
            {
                "what": name,
                "median": round(statistics.median(values), 4),
                "least": round(min(values), 4),
                "most": round(max(values), 4),
            }
            for name, values in found.items()
        ]
        for row in rows:
            print(json.dumps(row), flush=True)
        if _JSON.value:
            command = results_file.command_line(
                "python -m jax_cxl.launch benchmarks/snapshots/snapshot_costs.py", sys.argv[1:]
            )
            header = report.header(load, command) | {"emulated": True}
            header |= {"coherence": _COHERENCE.value, "platform": jax.default_backend()}
            header |= {"processes": jax.process_count(), "mib": _MIB.value}
            results_file.write(pathlib.Path(_JSON.value), header | {"results": rows})


if __name__ == "__main__":
    app.run(main)
