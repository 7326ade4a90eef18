"""The options of nccl-tests: `-b 8 -e 256M -f 2 -n 20 -w 5 -o all_reduce -d float`.

Each option means the same as in nccl-tests, with two differences: `-o` names the operation, because
nccl-tests has one program for each operation; and sums are the only reductions.
"""

import argparse
import re

from jax_cxl._commands import option_types

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OPS = {
    "all_gather": "all_gather",
    "all_reduce": "psum",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "psum_scatter",
    "scatter": "scatter",
    "sendrecv": "ppermute",
}
_TYPES = {
    "bfloat16": "bfloat16",
    "float": "float32",
    "half": "float16",
    "int32": "int32",
    "int8": "int8",
    "uint32": "uint32",
    "uint8": "uint8",
}
# What the programs of nccl-tests take without options.
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
    if any(each is not None for each in given):
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
    """Returns the sizes in bytes between -b and -e.

    Args:
      first: the first size; None takes the default of nccl-tests.
      last: the largest size; None takes the default of nccl-tests.
      factor: each size is the previous size times this; None: sizes grow by `step`.
      step: what is added to each size; None takes the default of nccl-tests.

    Raises:
      ValueError: there is no size between them, or there are too many.
    """
    first = _DEFAULT_BYTES if first is None else first
    last = max(first, _DEFAULT_BYTES) if last is None else last
    if first > last:
        raise ValueError(f"-b {first} is more than -e {last}: give a larger -e")
    if first == 0:
        raise ValueError("-b must be at least 1")
    found = [first]
    while len(found) <= _MOST_SIZES:
        size = found[-1] * factor if factor else found[-1] + (step or _DEFAULT_STEP)
        if size > last:
            return found
        found.append(size)
    raise ValueError(f"there are more than {_MOST_SIZES} sizes: give -f 2, or a larger -i")


def parse_size(text: str) -> int:
    """Returns the bytes of "8", "4K", "32M" or "1G", whose units are powers of two.

    Raises:
      ValueError: the text is malformed.
    """
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)", text.upper())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 8, 4K, 32M or 1G")
    return int(match[1]) * _UNITS[match[2]]
