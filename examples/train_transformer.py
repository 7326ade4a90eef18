"""Trains a byte-level transformer with FSDP whose collectives go through a CXL memory pool.

    python -m jax_cxl.launch -n 2 examples/train_transformer.py --plot=loss.png --json=run.json

reads the standard library of this Python and learns to predict the next byte, in some minutes on
two processor cores. It also runs under Slurm or mpirun, or as one process with several devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/train_transformer.py

`--collectives=lax` trains the same model to the same losses by JAX's own collectives. The flag
chooses the namespace, `jax_cxl` or `jax.lax`. Model and training step are the same for both.

On GPUs, one process each:

    python -m jax_cxl.launch -n 4 examples/train_transformer.py --platform=cuda --preset=340m

In the order of reading: `transformer.py` (the model), `fsdp.py` (sharding), `trainer.py` (the two
together), this file (the loop), `prefetch.py` (communication behind computation), `namespaces.py`,
`speed.py`, `corpus.py`, `checkpoint.py`, `report.py`.
"""

import importlib
import importlib.metadata
import platform
import time
from typing import TYPE_CHECKING, Any

import corpus
import fsdp
import jax
import jax.numpy as jnp
import namespaces
import optax
import report
import speed
import transformer
from absl import app, flags, logging
from trainer import State, Trainer

if TYPE_CHECKING:
    from checkpoint import Checkpoints

_COLLECTIVES = flags.DEFINE_enum(
    "collectives", "cxl", ["cxl", "lax"], "Through the memory pool, or JAX's own."
)
_CORPUS = flags.DEFINE_string("corpus", "", "Text file or folder; by default Python's library.")
_PLATFORM = flags.DEFINE_enum(
    "platform", None, ["cpu", "cuda"], "Devices to use; by default JAX chooses."
)
_PRESET = flags.DEFINE_enum(
    "preset", None, ["340m"], "Sizes for GPUs: 340 million parameters. Other flags override it."
)
_STEPS = flags.DEFINE_integer("steps", 600, "Optimizer steps.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the parameters and of the order of the data.")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 8, "Sequences per step, over all devices.", lower_bound=1
)
_SEQUENCE_LENGTH = flags.DEFINE_integer(
    "sequence_length", 256, "Bytes predicted per sequence.", lower_bound=1
)
_LAYERS = flags.DEFINE_integer("layers", 4, "Layers of the model.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 128, "Channels of the residual stream.", lower_bound=1)
_HEADS = flags.DEFINE_integer("heads", 4, "Attention heads.", lower_bound=1)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16"],
    "Dtype of the computation; parameters stay float32.",
)
_PREFETCH = flags.DEFINE_bool(
    "prefetch", False, "Communicate the parameters of a layer while its neighbour computes."
)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate", 3e-3, "Peak: warmed up for 5% of the steps, then a cosine down to a tenth."
)
_EVALUATE_EVERY = flags.DEFINE_integer(
    "evaluate_every", 50, "Steps between held-out losses.", lower_bound=1
)
_EVALUATE_SIZE = flags.DEFINE_integer("evaluate_size", 64, "Held-out sequences.", lower_bound=1)
_CHECKPOINT_DIR = flags.DEFINE_string(
    "checkpoint_dir",
    "",
    "Folder that all processes see. Training resumes from its newest checkpoint.",
)
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every", 200, "Steps between checkpoints.", lower_bound=1
)
_MEASURE = flags.DEFINE_bool(
    "measure", False, "At the end, time steps with and without communication (needs --prefetch)."
)
_JSON = flags.DEFINE_string("json", "", "File for every figure of the run.")
_PLOT = flags.DEFINE_string("plot", "", "Picture of the loss, such as loss.png.")

# The losses depend on these flags, and on the corpus.
_CONFIGURATION = (
    *(_STEPS, _SEED, _BATCH_SIZE, _SEQUENCE_LENGTH, _LAYERS, _WIDTH, _HEADS, _DTYPE, _PREFETCH),
    *(_LEARNING_RATE, _EVALUATE_EVERY, _EVALUATE_SIZE),
)

_PRESETS: dict[str, dict[str, Any]] = {
    "340m": {
        "layers": 12,
        "width": 1536,
        "heads": 12,
        "dtype": "bfloat16",
        "prefetch": True,
        "batch_size": 16,
        "sequence_length": 1024,
        "learning_rate": 3e-4,
        "evaluate_size": 16,
    },
}

# JAX hangs if a process with several CPU devices has more than about 32 collective programs in
# flight, with any collectives. The progress bar moves as often.
_STEPS_IN_FLIGHT = 10


def _start() -> fsdp.Collectives:
    """Joins the other processes, if there are any, and returns the collectives to use."""
    if _PLATFORM.value:
        jax.config.update("jax_platforms", _PLATFORM.value)
    if _COLLECTIVES.value == "cxl":
        jax_cxl = importlib.import_module("jax_cxl")
        jax_cxl.initialize()
        return jax_cxl
    try:
        jax.distributed.initialize()  # Detects jax_cxl.launch, Slurm, Open MPI and Kubernetes.
    except ValueError as error:
        if "coordinator_address" not in str(error):
            raise
        # There is only this process.
    return namespaces.Lax()


def _choose_preset() -> None:
    """Sets flags that are not on the command line to the values of the preset."""
    preset = _PRESET.value
    if preset is None:
        return
    for name, value in _PRESETS[preset].items():
        if not flags.FLAGS[name].present:
            flags.FLAGS[name].value = value


def _optimizer() -> optax.GradientTransformation:
    peak, steps = _LEARNING_RATE.value, _STEPS.value
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup_steps=steps // 20, decay_steps=steps, end_value=peak / 10
    )
    return optax.adamw(schedule, b2=0.95, weight_decay=0.1)


def _pool_counters(collectives: Any) -> tuple[int, float]:
    """Returns bytes written to and read from the pool, and seconds, of this process's ranks."""
    if isinstance(collectives, namespaces.Lax):
        return 0, 0.0
    stats = collectives.stats()
    return stats.bytes_published + stats.bytes_retrieved, stats.seconds


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # Used from its sources.


def _environment() -> dict[str, Any]:
    """Returns where the run took place."""
    packages = ["jax", "jaxlib", "optax", "orbax-checkpoint"]
    if _COLLECTIVES.value == "cxl":
        packages.append("jax_cxl")
    versions: dict[str, str | None] = {"python": platform.python_version()}
    return {
        "collectives": _COLLECTIVES.value,
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "versions": versions | {package: _version(package) for package in packages},
    }


def _train(
    trainer: Trainer,
    state: State,
    text: corpus.Corpus,
    first_step: int,
    figures: dict[str, report.Curve],
    checkpoints: "Checkpoints | None",
) -> tuple[State, dict[str, Any]]:
    """Trains to the last step.

    Args:
        trainer: the compiled programs.
        state: of `first_step`.
        text: what to train on.
        first_step: steps taken already.
        figures: the curves so far, appended to.
        checkpoints: where to save, if anywhere.

    Returns:
        The last state, and what was measured beside the curves.
    """
    last_step, window = _STEPS.value, _SEQUENCE_LENGTH.value + 1

    def batch(step: int) -> jax.Array:
        return trainer.put(text.train_batch(_SEED.value, step, _BATCH_SIZE.value, window))

    # Compiled ahead, so that the speed shown is the speed of training.
    held_out = trainer.put(text.held_out_batch(_EVALUATE_SIZE.value, window))
    start = time.perf_counter()
    trainer.compile(state, batch(1), held_out)
    compile_seconds = time.perf_counter() - start

    train_seconds, tokens_per_second = 0.0, None
    is_reporter = jax.process_index() == 0
    with report.ProgressReport(first_step, last_step, enabled=is_reporter) as progress:
        progress.say(
            f"{trainer.parameter_count:,} parameters on {jax.device_count()} devices of"
            f" {jax.process_count()} processes, collectives: {_COLLECTIVES.value},"
            f" {len(text.train) / 1e6:.1f} MB of {text.name}, compiled in {compile_seconds:.1f} s"
        )
        if first_step == 0:
            loss = float(trainer.evaluate(state.parameters, held_out))
            figures["heldout_nats_per_byte"].append([0, loss])
            progress.say(f"untrained: held-out {loss:.4f} nats/byte")
        else:
            progress.say(f"resumed after step {first_step}")

        in_flight = []
        start = time.perf_counter()
        for step in range(first_step + 1, last_step + 1):
            state, metrics = trainer.step(state, batch(step))
            in_flight.append((step, metrics))
            evaluates = step % _EVALUATE_EVERY.value == 0 or step == last_step
            saves = step % _CHECKPOINT_EVERY.value == 0 or step == last_step
            if not (evaluates or saves or len(in_flight) == _STEPS_IN_FLIGHT):
                continue

            jax.block_until_ready(state)
            train_seconds += time.perf_counter() - start
            tokens = (step - first_step) * _BATCH_SIZE.value * _SEQUENCE_LENGTH.value
            tokens_per_second = tokens / train_seconds
            for past_step, metrics in in_flight:
                for name, value in metrics.items():
                    figures[name].append([past_step, float(value)])
            in_flight.clear()
            progress.trained(step, figures["train_loss"][-1][1], tokens_per_second)
            if evaluates:
                loss = float(trainer.evaluate(state.parameters, held_out))
                figures["heldout_nats_per_byte"].append([step, loss])
                progress.evaluated(step, loss)
            if checkpoints and saves:
                checkpoints.save(step, state, figures)
            start = time.perf_counter()

    return state, {
        "tokens_per_second": tokens_per_second,
        "train_seconds": train_seconds,
        "compile_seconds": compile_seconds,
    }


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    _choose_preset()
    if _PREFETCH.value and _LAYERS.value < 2:
        raise app.UsageError("--prefetch needs at least two --layers")
    if _MEASURE.value and not _PREFETCH.value:
        raise app.UsageError("--measure needs --prefetch")
    logging.set_verbosity(logging.WARNING)  # absl's default shows JAX looking for TPUs.
    collectives = _start()
    text = corpus.load(_CORPUS.value, _SEQUENCE_LENGTH.value + 1)
    configuration = {flag.name: flag.value for flag in _CONFIGURATION}
    configuration["corpus_sha256"] = text.fingerprint()

    sizes = transformer.Sizes(_LAYERS.value, _WIDTH.value, _HEADS.value)

    def make_trainer(collectives: Any) -> Trainer:
        dtype, prefetches = jnp.dtype(_DTYPE.value), _PREFETCH.value
        return Trainer(sizes, dtype, _optimizer(), collectives, prefetches)

    trainer = make_trainer(collectives)
    state = trainer.init(_SEED.value)
    first_step = 0
    figures: dict[str, report.Curve] = {
        "train_loss": [],
        "gradient_norm": [],
        "heldout_nats_per_byte": [],
    }
    checkpoints = None
    if _CHECKPOINT_DIR.value:
        # Orbax takes seconds to import.
        checkpoint = importlib.import_module("checkpoint")
        checkpoints = checkpoint.Checkpoints(_CHECKPOINT_DIR.value, configuration)
        if (restored := checkpoints.restore(state)) is not None:
            first_step, state, figures = restored

    bytes_before, seconds_before = _pool_counters(collectives)
    state, measured = _train(trainer, state, text, first_step, figures, checkpoints)
    bytes_after, seconds_after = _pool_counters(collectives)
    if checkpoints:
        checkpoints.close()
    if _MEASURE.value:
        batch = text.train_batch(_SEED.value, 1, _BATCH_SIZE.value, _SEQUENCE_LENGTH.value + 1)
        measured |= speed.measure(
            trainer.step,
            make_trainer(namespaces.StandIns(collectives)).step,
            state,
            trainer.put(batch),
            collectives,
            jnp.dtype(_DTYPE.value),
        )
    if jax.process_index() != 0:
        return

    bigram = text.bigram_nats_per_byte()
    if _JSON.value:
        pool: dict[str, Any] = {
            "bytes_through_pool": bytes_after - bytes_before,
            "communication_seconds": seconds_after - seconds_before,
            "pool_figures": "training and evaluation; sums over the ranks of process 0",
        }
        if isinstance(collectives, namespaces.Lax):
            pool["communication_seconds"] = None
            pool["pool_figures"] = "none: jax.lax neither uses the pool nor reports its time"
        report.write_json(
            _JSON.value,
            figures
            | measured
            | pool
            | configuration
            | {
                "resumed_after_step": first_step,
                "parameters": trainer.parameter_count,
                "corpus": text.name,
                "train_bytes": len(text.train),
                "heldout_bytes": len(text.held_out),
                "bigram_nats_per_byte": bigram,
            }
            | _environment(),
        )
    if _PLOT.value:
        title = (
            f"{trainer.parameter_count / 1e6:.1f}M-parameter transformer on {text.name},"
            f" {jax.device_count()} devices, {_COLLECTIVES.value}"
        )
        report.plot(
            _PLOT.value, title, figures["train_loss"], figures["heldout_nats_per_byte"], bigram
        )


if __name__ == "__main__":
    app.run(main)
