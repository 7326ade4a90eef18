"""Code that all programs that train the transformer share: flags, training loop, report."""

import dataclasses
import importlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags, logging

from common import corpus, report, transformer
from common.trainer import State, Trainer

if TYPE_CHECKING:
    from common.checkpoint import Checkpoints

_CORPUS = flags.DEFINE_string("corpus", "", "Text file or folder; by default Python's library.")
_PLATFORM = flags.DEFINE_enum(
    "platform", None, ["cpu", "cuda"], "Devices to use; by default JAX chooses."
)
_PRESET = flags.DEFINE_enum(
    "preset",
    None,
    ["340m", "moe"],
    "Sizes for GPUs: 340 million parameters; for mixtures of 8 experts, 570 million. Other flags"
    " override it.",
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
_JSON = flags.DEFINE_string("json", "", "File for every figure of the run.")
_PLOT = flags.DEFINE_string("plot", "", "Picture of the loss, such as loss.png.")

# The losses depend on these flags, and on the corpus.
_CONFIGURATION = (
    *(_STEPS, _SEED, _BATCH_SIZE, _SEQUENCE_LENGTH, _LAYERS, _WIDTH, _HEADS, _DTYPE),
    *(_LEARNING_RATE, _EVALUATE_EVERY, _EVALUATE_SIZE),
)

# The values of other flags for each --preset. Programs ignore flags that they do not have.
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
    "moe": {
        "layers": 8,
        "width": 1024,
        "heads": 8,
        "dtype": "bfloat16",
        "batch_size": 16,
        "sequence_length": 1024,
        "learning_rate": 3e-4,
        "evaluate_size": 16,
    },
}

# JAX hangs if a process with several CPU devices has more than about 32 collective programs in
# flight, whichever collectives they use. So after this many steps the loop waits for the last one.
# The progress bar moves at each wait.
_STEPS_IN_FLIGHT = 10


@dataclasses.dataclass(frozen=True)
class Program:
    """What distinguishes a training program from the other ones.

    Attributes:
      collectives: name of the collectives, for people.
      configuration: flags of the program on which the losses depend.
      packages: packages besides JAX's whose versions are reported.
    """

    collectives: str
    configuration: Sequence[flags.FlagHolder] = ()
    packages: Sequence[str] = ()


@dataclasses.dataclass
class Run:
    """A run that has reached its last step.

    Attributes:
      state: the last state.
      figures: everything that the report shows.
      title: title of the picture.
    """

    state: State
    figures: dict[str, Any]
    title: str


def prepare(argv: Sequence[str]) -> None:
    """Reads the flags, before JAX makes its devices.

    Raises:
      UsageError: there are arguments that are not flags.
    """
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    if _PRESET.value is not None:
        for name, value in _PRESETS[_PRESET.value].items():
            if name in flags.FLAGS and not flags.FLAGS[name].present:
                flags.FLAGS[name].value = value
    logging.set_verbosity(logging.WARNING)  # absl's default shows JAX looking for TPUs.
    if _PLATFORM.value:
        jax.config.update("jax_platforms", _PLATFORM.value)


def connect() -> None:
    """Joins the other processes, if there are any, by JAX's own means."""
    try:
        jax.distributed.initialize()  # Detects jax_cxl.launch, Slurm, Open MPI and Kubernetes.
    except ValueError as error:
        # JAX does not detect Open MPI 5 and MPICH by itself (docs/running_on.md).
        by_mpi = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} & os.environ.keys()
        if "coordinator_address" not in str(error) or by_mpi:
            raise
        # No launcher has started this process, so it is the only one.


def load_corpus() -> corpus.Corpus:
    """Returns the text to train on."""
    return corpus.load(_CORPUS.value, _window())


def model() -> tuple[transformer.Sizes, jnp.dtype, optax.GradientTransformation]:
    """Returns the sizes of the model, the dtype of its computation, and the optimizer."""
    peak, steps = _LEARNING_RATE.value, _STEPS.value
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup_steps=steps // 20, decay_steps=steps, end_value=peak / 10
    )
    return (
        transformer.Sizes(_LAYERS.value, _WIDTH.value, _HEADS.value),
        jnp.dtype(_DTYPE.value),
        optax.adamw(schedule, b2=0.95, weight_decay=0.1),
    )


def batch(trainer: Trainer, text: corpus.Corpus, step: int) -> jax.Array:
    """Returns the rows of the batch for `step`, spread over the devices."""
    return trainer.put(text.train_batch(_SEED.value, step, _BATCH_SIZE.value, _window()))


# A function that is called after each step, with the number of the step, the state after it and its
# batch. Returns the state with which training continues.
AfterStep = Callable[[int, State, jax.Array], State]


def train(
    program: Program, trainer: Trainer, text: corpus.Corpus, after_step: AfterStep | None = None
) -> Run:
    """Trains to the last step, from the newest checkpoint if there is one."""
    configuration = {flag.name: flag.value for flag in (*_CONFIGURATION, *program.configuration)}
    configuration["corpus_sha256"] = text.fingerprint()
    state = trainer.init(_SEED.value)
    first_step = 0
    curves: dict[str, report.Curve] = {
        "train_loss": [],
        "gradient_norm": [],
        "heldout_nats_per_byte": [],
    }
    checkpoints = None
    if _CHECKPOINT_DIR.value:
        # Orbax takes seconds to import, so it is imported only if it is needed.
        checkpoint = importlib.import_module("common.checkpoint")
        checkpoints = checkpoint.Checkpoints(_CHECKPOINT_DIR.value, configuration)
        if (restored := checkpoints.restore(state)) is not None:
            first_step, state, curves = restored
    state, measured = _loop(
        program, trainer, state, text, first_step, curves, checkpoints, after_step
    )
    if checkpoints:
        checkpoints.close()
    parameters, devices = trainer.parameter_count, jax.device_count()
    figures = {
        **curves,
        **measured,
        **configuration,
        "resumed_after_step": first_step,
        "parameters": parameters,
        "corpus": text.name,
        "train_bytes": len(text.train),
        "heldout_bytes": len(text.held_out),
        "bigram_nats_per_byte": text.bigram_nats_per_byte(),
        **_environment(program),
    }
    title = (
        f"{parameters / 1e6:.1f}M-parameter transformer on {text.name}, {devices} devices,"
        f" {program.collectives}, data moved by {figures['data_moved_by']}"
    )
    return Run(state, figures, title)


def write(run: Run) -> None:
    """Writes the files that the flags ask for, in one of the processes."""
    if jax.process_index() != 0:
        return
    figures = run.figures
    if _JSON.value:
        report.write_json(_JSON.value, figures)
    if _PLOT.value:
        held_out, bigram = figures["heldout_nats_per_byte"], figures["bigram_nats_per_byte"]
        report.plot(_PLOT.value, run.title, figures["train_loss"], held_out, bigram)


def _window() -> int:
    return _SEQUENCE_LENGTH.value + 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # Used from its sources.


def _data_moved_by(program: Program) -> str:
    """Returns what moves the data of the collectives. Call it when the programs are compiled."""
    if "jax_cxl" in program.packages:
        return "jax_cxl"
    # If the launcher or a variable has asked jax_cxl to replace collectives, JAX has imported it.
    module = sys.modules.get("jax_cxl")
    if module is None:
        return "XLA"
    stats = module.stats()
    if not stats.collectives_taken:
        return "XLA"
    return "jax_cxl and XLA" if stats.collectives_left else "jax_cxl"


def _environment(program: Program) -> dict[str, Any]:
    """Returns what the run depended on: collectives, processes, devices, versions of packages."""
    packages = ["jax", "jaxlib", "optax", "orbax-checkpoint", *program.packages]
    versions: dict[str, str | None] = {"python": platform.python_version()}
    return {
        "collectives": program.collectives,
        "data_moved_by": _data_moved_by(program),
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "versions": versions | {package: _version(package) for package in packages},
    }


def _loop(
    program: Program,
    trainer: Trainer,
    state: State,
    text: corpus.Corpus,
    first_step: int,
    curves: dict[str, report.Curve],
    checkpoints: "Checkpoints | None",
    after_step: AfterStep | None,
) -> tuple[State, dict[str, Any]]:
    """Trains to the last step.

    Args:
      program: which program trains.
      trainer: the programs for XLA, to be compiled.
      state: the state at `first_step`.
      text: what to train on.
      first_step: steps taken already.
      curves: the curves so far, appended to.
      checkpoints: where to save, if anywhere.
      after_step: what to do between steps, if anything.

    Returns:
      The last state, and what was measured besides the curves.
    """
    last_step = _STEPS.value
    # Compiled ahead, so that the speed shown is the speed of training.
    held_out = trainer.put(text.held_out_batch(_EVALUATE_SIZE.value, _window()))
    is_reporter = jax.process_index() == 0
    progress = report.ProgressReport(first_step, last_step, enabled=is_reporter)
    progress.say("compiling the step of training and the evaluation")
    start = time.perf_counter()
    trainer.compile(state, batch(trainer, text, 1), held_out)
    compile_seconds = time.perf_counter() - start

    train_seconds, tokens_per_second = 0.0, None
    with progress:
        progress.say(
            f"{trainer.parameter_count:,} parameters on {jax.device_count()} devices of"
            f" {jax.process_count()} processes, collectives: {program.collectives}, data moved by"
            f" {_data_moved_by(program)}, {len(text.train) / 1e6:.1f} MB of {text.name}, compiled"
            f" in {compile_seconds:.1f} s"
        )
        if first_step == 0:
            loss = float(trainer.evaluate(state.parameters, held_out))
            curves["heldout_nats_per_byte"].append([0, loss])
            progress.say(f"untrained: held-out {loss:.4f} nats/byte")
        else:
            progress.say(f"resumed after step {first_step}")

        in_flight = []
        start = time.perf_counter()
        for step in range(first_step + 1, last_step + 1):
            rows = batch(trainer, text, step)
            state, metrics = trainer.step(state, rows)
            if after_step:
                state = after_step(step, state, rows)
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
                    curves[name].append([past_step, float(value)])
            in_flight.clear()
            progress.trained(step, curves["train_loss"][-1][1], tokens_per_second)
            if evaluates:
                loss = float(trainer.evaluate(state.parameters, held_out))
                curves["heldout_nats_per_byte"].append([step, loss])
                progress.evaluated(step, loss)
            if checkpoints and saves:
                checkpoints.save(step, state, curves)
            start = time.perf_counter()

    return state, {
        "tokens_per_second": tokens_per_second,
        "train_seconds": train_seconds,
        "compile_seconds": compile_seconds,
        "peak_bytes": (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    }
