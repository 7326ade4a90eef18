"""The command line of `python -m jax_cxl snapshots`."""

import argparse
import fcntl
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

from jax_cxl import _text, errors
from jax_cxl._commands import option_types
from jax_cxl._commands.snapshots import listing, orbax_files
from jax_cxl._snapshots import (
    examining,
    layout,
    memory as opening,
    repair,
    restoring,
    superblocks,
    validity,
)
from jax_cxl._snapshots.memory import Memory

_DESCRIPTION = """\
Shows and changes the snapshots of jax_cxl.Snapshots, without the job that saved them.

WHERE is the URI that the job has given to jax_cxl.Snapshots, for example
file:/mnt/cxl/a,/mnt/cxl/b?size=1GiB. Where the files exist, size= may be left out if snapshots take
all of them. All commands but list, check and export need memory that no job has open. They check
this if the memory is in files. They cannot check it if the memory is a device."""

_EPILOG = """\
The exit status is 0, or 1 if something is damaged or could not be done, or 2 for wrong arguments.
python -m jax_cxl snapshots COMMAND --help says more."""

_LAST = 1 << 64  # more than the number of any save


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the status to exit with."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (errors.CxlError, ValueError, OSError) as error:
        print(f"python -m jax_cxl snapshots: {_text.printable(str(error))}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jax_cxl snapshots",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    step = option_types.whole_number(0)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], what: str, more: str = ""
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.{more and ' ' + more}"
        )
        command.set_defaults(run=run)
        if name == "import":
            command.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
        command.add_argument("where", metavar="WHERE")
        return command

    command = add("list", _list, "show the snapshots, and why areas have none")
    command.add_argument("--json", action="store_true", help="print JSON")
    add(
        "check",
        _check,
        "read all blocks, and print what is damaged",
        "The exit status is 1 if anything is damaged, even if repair can mend it from parity.",
    )
    command = add(
        "export",
        _export,
        "write a snapshot as a checkpoint of orbax",
        "orbax.checkpoint.StandardCheckpointer restores it. Nodes of other types than dict and list"
        " become dicts by the names of their fields, and typed PRNG keys become their key data"
        " (jax.random.wrap_key_data makes keys of them). The tree must fit into the memory of"
        " this host.",
    )
    command.add_argument("--step", type=step, required=True, help="step of the snapshot")
    command.add_argument(
        "folder", metavar="FOLDER", type=pathlib.Path, help="folder to write, which must not exist"
    )
    command = add(
        "import",
        _import,
        "save a checkpoint of orbax as a snapshot",
        "FOLDER is the folder of a checkpoint, or of a step of a CheckpointManager."
        " Snapshots.restore finds its leaves by their names: it takes the leaf that orbax calls the"
        " key mu for the field mu of a node.",
    )
    command.add_argument("--step", type=step, required=True, help="step of the snapshot")
    _add_layout(command, " in new memory")
    command = add(
        "delete",
        _delete,
        "forget a snapshot, or all of them",
        "Without --step it also removes the file of a shm: place, and so frees the memory. It gives"
        " a dax: place back, so that a pool may take it.",
    )
    command.add_argument("--step", type=step, help="step of the snapshot (default: all)")
    command = add(
        "format",
        _format,
        "prepare memory for snapshots, whatever it holds",
        "What is there is lost.",
    )
    _add_layout(command, "")
    command.add_argument("--yes", action="store_true", help="format even if something is there")
    add(
        "repair",
        _repair,
        "restore lost paths and damaged blocks from parity",
        "It needs snapshots with parity=1. First put an empty file or device in the place of a lost"
        " path. A lost file need not be there if size= says how large it was.",
    )
    return parser


def _add_layout(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--keep",
        type=option_types.whole_number(2),
        help=f"how many snapshots stay{what} (default: 2)",
    )
    command.add_argument(
        "--parity", type=int, choices=(0, 1), help=f"how many paths may be lost{what} (default: 0)"
    )


def _list(options: argparse.Namespace) -> int:
    memory = _open(options.where)
    if options.json:
        print(listing.as_json(memory))
        return 0
    geometry = memory.geometry
    print(
        f"{memory.where}: keep={geometry.keep}, parity={geometry.parity},"
        f" {geometry.num_devices} x {geometry.device_bytes} bytes"
    )
    for device in memory.blank:
        print(f"device {device} is lost; repair rebuilds it")
    for area in listing.areas(memory):
        print(area.line())
    return 0


def _check(options: argparse.Namespace) -> int:
    memory = _open(options.where)
    damaged = len(memory.blank)
    for device in memory.blank:
        print(f"device {device} is lost: parity has its blocks")
    for device, offset in superblocks.damaged(memory):
        damaged += 1
        print(f"superblock (device {device}, offset {offset:#x}) is damaged: it has a copy")
    for records in _valid(memory):
        step = records[0].step
        problems = list(_damages(memory, records))
        damaged += len(problems)
        for problem in problems:
            print(f"step {step}: {problem}")
        print(f"step {step}: {'damaged' if problems else 'undamaged'}")
    if damaged == 0:
        print("nothing is damaged")
    return int(damaged > 0)


def _damages(memory: Memory, records: list[layout.Record]) -> Iterator[str]:
    for block in examining.records(memory, records):
        if not block.intact and block.device not in memory.blank:
            yield f"{block} is damaged: other devices have it"
    try:
        for block in examining.blocks(restoring.Reader(memory, records)):
            # What a lost device had is not listed block by block.
            if not block.intact and (block.content is None or block.device not in memory.blank):
                has = "is lost" if block.content is None else "is damaged: parity has it"
                yield f"{block} {has}"
    except errors.SnapshotError as error:
        yield str(error)


def _export(options: argparse.Namespace) -> int:
    memory = _open(options.where)
    _only_on_the_host()
    keys = orbax_files.export(memory, _of_step(memory, options.step), options.folder)
    print(f"wrote step {options.step} to {options.folder}")
    for name in keys:
        print(f"{_text.printable(name)}: typed PRNG keys, of which it has the key data")
    return 0


def _import(options: argparse.Namespace) -> int:
    from jax_cxl._snapshots import snapshots

    _only_on_the_host()
    tree = orbax_files.read(options.folder)
    _refuse_if_in_use(options.where)
    keep, parity = options.keep, options.parity
    if _exists(options.where):
        found = _geometry(options.where)
        if found is not None:
            keep, parity = keep or found.keep, found.parity if parity is None else parity
    with snapshots.Snapshots(options.where, keep=keep or 2, parity=parity or 0) as opened:
        opened.latest()
        opened.save(options.step, tree)
        opened.wait()
    print(f"saved {options.folder} as step {options.step}")
    return 0


def _delete(options: argparse.Namespace) -> int:
    _refuse_if_in_use(options.where)
    memory = _open(options.where)
    of = _valid(memory) if options.step is None else [_of_step(memory, options.step)]
    every = options.step is None
    for area in range(memory.geometry.areas) if every else [of[0][0].number]:
        for device in range(memory.geometry.num_devices):
            memory.erase_records(device, area)
    for records in of:
        print(f"deleted step {records[0].step}")
    spec = opening.spec_of(options.where)
    if every and options.where.startswith("shm:"):
        for path in spec.paths:
            os.unlink(path)
            print(f"removed {path}")
    if every and spec.kind == "dax":
        for device in range(memory.geometry.num_devices):
            memory.write(device, 0, bytes(layout.HEADER_BYTES))
        print(f"{options.where} may be used for a pool, or formatted for snapshots")
    return 0


def _format(options: argparse.Namespace) -> int:
    _refuse_if_in_use(options.where)
    if not options.yes and (holds := _contents(options.where)):
        print(f"{options.where} {holds}. --yes clears it: what is there is lost.", file=sys.stderr)
        return 1
    memory = opening.format_memory(options.where, options.keep or 2, options.parity or 0)
    geometry = memory.geometry
    print(
        f"{memory.where}: keep={geometry.keep}, parity={geometry.parity}, each snapshot may take"
        f" {geometry.rows * geometry.blocks_per_row * layout.BLOCK_BYTES} bytes"
    )
    return 0


def _repair(options: argparse.Namespace) -> int:
    _refuse_if_in_use(options.where)
    blank = _open(options.where).blank
    memory = opening.open_memory(options.where, None, None, repair=True)
    done = repair.repair(memory, _LAST, 0, 1, lambda values: [tuple(values)])
    for device in blank:
        print(f"device {device} was lost")
    print(f"{done.written} blocks, records and superblocks were written")
    for step in done.damaged:
        print(f"step {step} is damaged, more than parity can mend", file=sys.stderr)
    return int(bool(done.damaged))


def _open(where: str) -> Memory:
    """Opens snapshots that exist, with the layout that they have. Creates nothing."""
    paths = opening.spec_of(where).paths
    if not any(os.path.exists(path) for path in paths):
        raise errors.SnapshotError(f"there is no {', '.join(paths)}")
    return opening.open_memory(where, None, None)


def _valid(memory: Memory) -> list[list[layout.Record]]:
    return validity.all_valid(memory, _LAST)


def _of_step(memory: Memory, step: int) -> list[layout.Record]:
    found = _valid(memory)
    for records in found:
        if records[0].step == step:
            return records
    steps = [records[0].step for records in found]
    raise errors.SnapshotError(
        f"{memory.where!r} has no valid snapshot of step {step}, only of steps {steps}"
    )


def _exists(where: str) -> bool:
    return any(os.path.exists(path) for path in opening.spec_of(where).paths)


def _geometry(where: str) -> layout.Geometry | None:
    """Returns the layout of snapshots, None if there are none."""
    try:
        return _open(where).geometry
    except errors.SnapshotError:
        return None


def _contents(where: str) -> str:
    """Says what memory holds; "" if it is new or all zeros."""
    if not _exists(where):
        return ""
    try:
        memory = _open(where)
    except errors.SnapshotError as error:
        return "" if str(error).endswith(superblocks.EMPTY) else f"may hold something: {error}"
    steps = [records[0].step for records in _valid(memory)]
    return f"holds the snapshots of steps {steps}" if steps else ""


def _refuse_if_in_use(where: str) -> None:
    """Raises an error if a process has one of the files open as memory."""
    spec = opening.spec_of(where) if _exists(where) else None
    for path in spec.paths if spec and spec.kind == "file" else ():
        if not os.path.exists(path):
            continue
        with open(path, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.PoolError(f"{path} is in use by a job: wait for its end") from None
            except OSError:
                return  # A file system without locks.


def _only_on_the_host() -> None:
    """Keeps JAX off the GPUs: the command needs none, and a job may use them."""
    import jax

    jax.config.update("jax_platforms", "cpu")
