"""The options of nccl-tests: `-b 8 -e 256M -f 2 -n 20 -w 5 -o all_reduce -d float`.

Each option means the same as in nccl-tests, with two differences: `-o` names the operation, because
nccl-tests has one program for each operation; and sums are the only reductions.
"""

import argparse
import re

from jax_cxl import _sizes
from jax_cxl._commands import option_types

_OPS = {
    **{name: name for name in ("all_gather", "broadcast", "gather", "reduce", "scatter")},
    "all_reduce": "psum",
    "alltoall": "all_to_all",
    "reduce_scatter": "psum_scatter",
    "sendrecv": "ppermute",
}
_TYPES = {
    **{name: name for name in ("bfloat16", "int32", "int8", "uint32", "uint8")},
    "float": "float32",
    "half": "float16",
}
# The sizes that the programs of nccl-tests use if they get no options.
_DEFAULT_BYTES = 32 << 20
_DEFAULT_STEP = 1 << 20
_MOST_SIZES = 1000


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options. `translate` converts them to the options of this command."""
    group = parser.add_argument_group("options of nccl-tests")
    size, number = option_types.telling(parse_size), option_types.whole_number
    group.add_argument("-b", "--minbytes", type=size, metavar="SIZE", help="first size: 8, 4K, 32M")
    group.add_argument("-e", "--maxbytes", type=size, metavar="SIZE", help="last size")
    step = group.add_mutually_exclusive_group()
    step.add_argument("-f", "--stepfactor", type=number(2), metavar="F", help="each size times F")
    step.add_argument("-i", "--stepbytes", type=size, metavar="SIZE", help="each size plus SIZE")
    group.add_argument("-n", "--iters", type=number(1), metavar="K", help="calls that are timed")
    group.add_argument(
        "-w", "--warmup_iters", type=number(0), default=0, metavar="K", help="calls before, untimed"
    )
    for short, long, metavar, choices, ours in (
        ("-o", "--op", "OP", _OPS, "--ops"),
        ("-d", "--datatype", "TYPE", _TYPES, "--dtype"),
    ):
        words = f"as {ours}: {', '.join(choices)}"
        group.add_argument(short, long, metavar=metavar, choices=choices, help=words)


def translate(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets --sizes, --calls, --repeats, --ops and --dtype from the options of nccl-tests."""
    given = (options.minbytes, options.maxbytes, options.stepfactor, options.stepbytes)
    if any(given):
        try:
            options.sizes = sizes(*given)
        except ValueError as error:
            parser.error(str(error))
    if options.iters is not None:
        options.calls = options.iters
    if options.repeats is None:
        # nccl-tests takes one sample: the mean of all calls.
        options.repeats = 7 if options.iters is None else 1
    if options.op is not None:
        options.ops = [_OPS[options.op]]
    if options.datatype is not None:
        options.dtype = _TYPES[options.datatype]


def sizes(first: int | None, last: int | None, factor: int | None, step: int | None) -> list[int]:
    """Returns the sizes in bytes between -b and -e. None takes the default of nccl-tests.

    Args:
      first: the first size.
      last: the largest size.
      factor: each size is the previous size times this; None: sizes grow by `step`.
      step: how much larger each size is than the previous size.

    Raises:
      ValueError: there is no size between `first` and `last`, or there are too many.
    """
    first = first or _DEFAULT_BYTES
    last = last or max(first, _DEFAULT_BYTES)
    if first > last:
        raise ValueError(f"-b {first} is more than -e {last}: give a larger -e")
    if factor:
        return _sizes.parse_list(f"{first}:{last}:x{factor}")
    found = range(first, last + 1, step or _DEFAULT_STEP)
    if len(found) > _MOST_SIZES:
        raise ValueError(f"there are more than {_MOST_SIZES} sizes: give -f 2, or a larger -i")
    return list(found)


def parse_size(text: str) -> int:
    """Returns the bytes of "8", "4K", "32M" or "1G", whose units are powers of two.

    Raises:
      ValueError: the text is malformed, or 0.
    """
    if not re.fullmatch(r"[1-9]\d{0,14}[KMGT]?", text.upper(), re.ASCII):
        raise ValueError(f"{text!r} is not a size such as 8, 4K, 32M or 1G")
    return _sizes.parse(text if text.isdecimal() else f"{text.upper()}iB")
