"""The command line of `python -m jax_cxl store`."""

import argparse
import fcntl
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jax_cxl import _text, errors
from jax_cxl._commands import option_types
from jax_cxl._commands.store import listing
from jax_cxl._job.pool import pool_uri
from jax_cxl._store import following, store
from jax_cxl._store.memory import catalog, layout, opening
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import repair, restoring
from jax_cxl._store.trees import names as leaf_names
from jax_cxl._store.writing import fence

_DESCRIPTION = """\
Shows and changes what is in a store of jax_cxl.Store or jax_cxl.Snapshots, without the jobs that
use it.

WHERE is the URI that the job has given, for example file:/mnt/cxl/a,/mnt/cxl/b?size=1GiB. Where the
files exist, size= may be left out if the store takes all of them. All commands but list, check,
export and import need memory that no job has open. They check this if the memory is in files. They
cannot check it if the memory is a device."""

_EPILOG = """\
The exit status is 0, or 1 if something is damaged or could not be done, or 2 for wrong arguments.
python -m jax_cxl store COMMAND --help says more."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the status to exit with."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (errors.CxlError, ValueError, OSError) as error:
        print(f"python -m jax_cxl store: {_text.printable(str(error))}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = option_types.command("store", _DESCRIPTION, epilog=_EPILOG)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], what: str, more: str = ""
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.{more and ' ' + more}"
        )
        command.set_defaults(run=run)
        if name == "import":
            command.add_argument("path", metavar="PATH", type=pathlib.Path)
        command.add_argument("where", metavar="WHERE")
        return command

    add("list", _list, "show names and versions, and why areas have none")
    add(
        "check",
        _check,
        "read all blocks, and print what is damaged",
        "The exit status is 1 if anything is damaged, even if repair can mend it from parity.",
    )
    command = add(
        "export",
        _export,
        "write a version as a safetensors file",
        "The names of tensors have dots: layers.0.weight. Typed PRNG keys become their key data"
        " (jax.random.wrap_key_data makes keys of them). The tree must fit into the memory of this"
        " host.",
    )
    _add_version(command, "the newest")
    command.add_argument("path", metavar="PATH", type=pathlib.Path, help="the file; a new one")
    command = add("import", _import, "publish a safetensors file")
    _add_version(command, "one more than the newest, or 0", named=True)
    what = "how many versions to keep if the name is new (default: 2)"
    option_types.add_number(command, "--keep", 2, what)
    _add_parity(command, " in new memory")
    command = add(
        "delete",
        _delete,
        "forget a version, a name, or all of the store",
        "Without --name and --version it also removes the file of a shm: place, and so frees the"
        " memory. It gives a dax: place back, so that a pool may take it.",
    )
    _add_version(command, "all")
    command = add(
        "format",
        _format,
        "prepare memory for a store, whatever it holds",
        "What is there is lost. But other stores on the same device, and pools of living jobs, must"
        " not overlap the memory.",
    )
    _add_parity(command, "")
    command.add_argument("--yes", action="store_true", help="format even if something is there")
    add(
        "repair",
        _repair,
        "restore lost paths and damaged blocks from parity",
        "Without parity=1 it can only restore superblocks and numbers of begun saves. First put an"
        " empty file or device in place of a lost path. A lost file need not be there if size= says"
        " how large it was.",
    )
    return parser


def _add_version(command: argparse.ArgumentParser, default: str, named: bool = False) -> None:
    what = "the name" if named else "the name (default: the only one)"
    command.add_argument("--name", required=named, help=what)
    option_types.add_number(command, "--version", 0, f"version, or step (default: {default})")


def _add_parity(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--parity", type=int, choices=(0, 1), help=f"how many paths may be lost{what} (default: 0)"
    )


def _list(options: argparse.Namespace) -> int:
    devices = _open(options.where)
    for line in listing.lines(devices):
        print(line)
    return 0


def _check(options: argparse.Namespace) -> int:
    devices = _open(options.where)
    damaged = len(devices.blank)
    for device in devices.blank:
        print(f"device {device} is lost: parity has its blocks")
    for device, offset in opening.damaged_superblocks(devices):
        damaged += 1
        print(f"superblock (device {device}, offset {offset:#x}) is damaged: it has a copy")
    for device, offset in devices.sessions.damaged():
        damaged += 1
        print(f"session (device {device}, offset {offset:#x}) is damaged: repair mends it")
    for section in listing.sections(devices):
        for device, offset, _ in section.damaged_numbers():
            damaged += 1
            print(
                f"{_text.printable(section.entry.name)}: number of a begun save (device {device},"
                f" offset {offset:#x}) is damaged: repair mends it"
            )
        for records in _each_leased(section):
            what = f"{_text.printable(section.entry.name)} {records[0].version}"
            problems = list(_damages(section, records))
            damaged += len(problems)
            for problem in problems:
                print(f"{what}: {problem}")
            print(f"{what}: {'damaged' if problems else 'undamaged'}")
    if damaged == 0:
        print("nothing is damaged")
    return int(damaged > 0)


def _each_leased(section: Section) -> Iterator[Records]:
    """Yields the valid versions, the newest first, each leased until the next one.

    Leaves out versions that a job overwrites before they can be leased.
    """
    some = False
    while not some:
        found = section.all_valid()
        if not found or not section.is_current():
            return
        for records in found:
            with following.leased(section, records) as there:
                if there:
                    some = True
                    yield records
                elif not some:
                    break  # Newer versions have replaced those that were found.


def _damages(section: Section, records: Records) -> Iterator[str]:
    blank = section.devices.blank
    for block in repair.examine_records(section, records):
        if not block.intact and block.device not in blank:
            yield f"{block} is damaged: other devices have it"
    try:
        for block in repair.examine_blocks(restoring.Reader(section, records)):
            # The blocks of a lost device that parity can restore are not listed one by one.
            if not block.intact and (block.content is None or block.device not in blank):
                has = "is lost" if block.content is None else "is damaged: parity has it"
                yield f"{block} {has}"
    except errors.StoreError as error:
        yield str(error)


def _export(options: argparse.Namespace) -> int:
    devices = _open(options.where)
    section = _section(devices, options.name)
    if options.path.exists():
        raise errors.CxlError(f"{options.path} already exists; choose a new name")
    there: object = False
    while not there:  # A job may overwrite the version before it is leased.
        records = _of_version(section, options.version)
        with following.leased(section, records) as there:
            if there:
                reader = restoring.Reader(section, records)
                _write_file(reader, options.path)
        if not there and not section.is_current():
            raise errors.StoreError(f"{section.text} was deleted")
    print(f"wrote {_text.printable(section.entry.name)} {records[0].version} to {options.path}")
    for leaf in reader.leaves.values():
        if leaf.key:
            print(f"{_text.printable(leaf.name)}: typed PRNG keys, written as key data")
    return 0


def _import(options: argparse.Namespace) -> int:
    library = _safetensors()
    try:
        tree = library.load_file(options.path)
    except Exception as error:  # The library raises a type of its own.
        raise errors.CxlError(f"safetensors cannot read {options.path}: {error}") from error
    with store.Store(options.where, parity=options.parity) as opened:
        version = opened.publish(options.name, tree, version=options.version, keep=options.keep)
        opened.flush(options.name)
    print(f"published {options.path} as {options.name} {version}")
    return 0


def _write_file(reader: restoring.Reader, path: pathlib.Path) -> None:
    """Writes a version to a new file. The names of tensors have dots: `layers.0.weight`."""
    tensors: dict[str, np.ndarray] = {}
    for name, leaf in reader.leaves.items():
        key = ".".join(leaf_names.simple(name))
        if not leaf.dtype or key in tensors or not key:
            raise errors.CxlError(
                f"a safetensors file cannot hold {name}, only arrays, each with its own name:"
                " read it with Store.read instead, and save it by a library of your choice"
            )
        tensors[key] = reader.read_same(leaf, tuple((0, n) for n in leaf.shape))
    try:
        _safetensors().save_file(tensors, path)
    except Exception as error:  # The library raises a type of its own.
        raise errors.CxlError(f"safetensors cannot write {path}: {error}") from error


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise errors.CxlError("this needs safetensors: pip install safetensors") from None
    return safetensors.numpy


def _delete(options: argparse.Namespace) -> int:
    _refuse_if_in_use(options.where)
    devices = _open(options.where)
    if options.version is not None:
        section = _section(devices, options.name)
        records = _of_version(section, options.version)
        for device in devices.usable:
            section.erase_records(device, records[0].number)
        print(f"deleted {_text.printable(section.entry.name)} {records[0].version}")
        return 0
    for section in (
        listing.sections(devices) if options.name is None else [_section(devices, options.name)]
    ):
        fence.delete(section)
        print(f"deleted {_text.printable(section.entry.name)}")
    if options.name is not None:
        return 0
    spec = opening.spec_of(options.where)
    if pool_uri.parse(options.where).in_dev_shm:
        for path in spec.paths:
            os.unlink(path)
            print(f"removed {path}")
    if spec.is_device:
        for device in devices.usable:
            devices.write(device, 0, bytes(layout.SESSIONS_OFFSET))
        print(f"{options.where} may be used for a pool, or formatted for a store")
    return 0


def _format(options: argparse.Namespace) -> int:
    _refuse_if_in_use(options.where)
    if not options.yes and (holds := _contents(options.where)):
        print(f"{options.where} {holds}. --yes clears it: what is there is lost.", file=sys.stderr)
        return 1
    devices = opening.format_devices(options.where, options.parity or 0)
    print(
        f"{devices.where}: parity={devices.parity}, {devices.count} x"
        f" {devices.core.device_bytes} bytes"
    )
    return 0


def _repair(options: argparse.Namespace) -> int:
    _refuse_if_in_use(options.where)
    blank = _open(options.where).blank
    devices = opening.open_devices(options.where, None, repair=True)
    done = repair.repair(devices, listing.sections(devices))
    for device in blank:
        print(f"device {device} was lost")
    print(f"{done.written} blocks, records and superblocks were written")
    for what in done.damaged:
        print(f"{what} is damaged, more than parity can mend", file=sys.stderr)
    return int(bool(done.damaged))


def _open(where: str) -> Devices:
    """Opens a store that exists. Creates nothing."""
    return opening.open_devices(where, None, existing=True)


def _section(devices: Devices, name: str | None) -> Section:
    """Returns the section of `name`. If `name` is None, the store must have a single name."""
    found = listing.sections(devices)
    names = [section.entry.name for section in found]
    if name is None and len(found) != 1:
        raise errors.StoreError(
            f"choose a name with --name: {devices.where!r} has the names {names}"
        )
    for section in found:
        if name in (None, section.entry.name):
            return section
    raise errors.StoreError(f"{devices.where!r} has no {name!r}, only the names {names}")


def _of_version(section: Section, version: int | None) -> Records:
    found = section.all_valid()
    for records in found:
        if version in (None, records[0].version):
            return records
    versions = [records[0].version for records in found]
    what = (
        "no valid version: python -m jax_cxl store list tells why"
        if version is None
        else f"no valid version {version}, only the versions {versions}"
    )
    raise errors.StoreError(f"{section.text} has {what}")


def _contents(where: str) -> str:
    """Describes what memory holds; returns "" if it is new or all zeros."""
    try:
        devices = _open(where)
    except opening.AbsentError:
        return ""
    except errors.StoreError as error:
        return f"may hold something: {error}"
    names = [entry.name for entry in catalog.entries(devices)]
    return f"holds the names {names}" if names else ""


def _refuse_if_in_use(where: str) -> None:
    """Raises an error if a process uses one of the store's files as memory."""
    spec = opening.spec_of(where)
    for path in filter(os.path.exists, () if spec.is_device else spec.paths):
        with open(path, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.PoolError(f"{path} is in use by a job: wait until it ends") from None
            except OSError:
                return  # A file system without locks.
