"""`doctor --device --with`: checks a pool's memory between two hosts.

One process listens, and the other process connects. They coordinate each step with short lines of
JSON over this connection. The writes under test go through the pool.
"""

import dataclasses
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from jax_cxl import _core, _text, errors
from jax_cxl._commands.status import memory_check
from jax_cxl._commands.status.finding import Finding, note, ok, problem
from jax_cxl._job import process_identity
from jax_cxl._job.pool import pool_uri

# How long a load is repeated before a store counts as lost.
_ARRIVAL_SECONDS = 0.05
_ROUNDS = 2000
# How long this host waits for the other one.
_ANSWER_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """How many stores, one to each word, arrived at the other host.

    To drop a cache line is to remove it from the caches of the host that loads the word, so that
    the load reads the memory itself.

    Attributes:
      plain: how many stores without a write-back arrived, although the loads dropped no cache line.
      dropped: how many stores without a write-back arrived, if each load dropped its line first.
      flushed: how many stores with a write-back arrived, if each load dropped its line first.
    """

    plain: int
    dropped: int
    flushed: int


def recommend(
    words: int, stores: Arrivals, *, round_trip_ns: float, kernels: int
) -> Iterator[Finding]:
    """Concludes from what two hosts saw of each other's stores which `coherence=` the pool needs.

    Args:
      words: number of stores in each direction.
      stores: the arrivals of the worse direction.
      round_trip_ns: median time of a round trip of a doorbell.
      kernels: number of kernels that run the two processes.
    """
    if stores.flushed < words:
        yield problem(
            f"memory: {words - stores.flushed} of {words} stores that were written back did"
            " not arrive: the hosts do not map the same memory, or the device caches it"
        )
        return
    yield ok(f"memory: the same on both hosts ({words} of {words} stores arrived)")
    yield ok(
        f"doorbell: {round_trip_ns / 2000:.2f} us each way (half of a round trip, median of"
        f" {_ROUNDS}, coherence=flush)"
    )
    if kernels < 2:
        yield note("both processes run under one kernel, whose caches are always coherent")
    counts = f"{stores.plain} of {words} stores arrived without a write-back and without a drop"
    if stores.plain == words:
        yield ok(
            f"coherence: {counts}, so the hardware may keep the caches coherent. If its maker says"
            " so, set coherence=coherent; coherence=flush, the default of dax:, is always safe"
        )
    elif stores.dropped == words:
        yield ok(
            f"coherence: {counts}, and {stores.dropped} with a drop: write-backs are not needed,"
            " but drops are; use coherence=flush"
        )
    else:
        yield ok(f"coherence: {counts}: the caches are not coherent; use coherence=flush")


def check_between_hosts(uri: str, address: str) -> Iterator[Finding]:
    """Runs the check together with a process on another host, which got the same URI.

    Args:
      address: "HOST:PORT" of the host that listens; ":PORT" on that host itself.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"--with must be HOST:PORT, or :PORT on the host that listens, not {address!r}"
        )
    spec = pool_uri.parse(uri)
    try:
        with _connect(host, int(port)) as connection:
            partner = _Partner(connection)
            findings = _check(spec, partner, first=not host)
    except (OSError, errors.CxlError) as error:
        yield problem(f"memory between the hosts: {error}")
        return
    yield from findings


def _connect(host: str, port: int) -> socket.socket:
    """Listens if `host` is "". Otherwise tries to connect until the other host listens."""
    if not host:
        with _server(port) as server:
            server.settimeout(_ANSWER_SECONDS)
            try:
                return server.accept()[0]
            except TimeoutError as error:
                raise TimeoutError(
                    f"nothing connected to port {port} within {_ANSWER_SECONDS:g} s: run the same"
                    f" check on the other host, with --with THIS_HOST:{port}"
                ) from error
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_ANSWER_SECONDS)
            # If the address is of this host, and no process listens on the port yet, Linux may
            # choose the same port for this end of the connection. Then the process is connected to
            # itself.
            if connection.getsockname() != connection.getpeername():
                return connection
            # Close the connection at once, so that the port is free for the server.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        except ConnectionRefusedError:
            pass
        except OSError as error:
            raise OSError(f"cannot reach {host}:{port}: {error}") from error
        if time.monotonic() > deadline:
            raise ConnectionRefusedError(
                f"nothing listens on {host}:{port}: run the same check there, with --with :{port}"
            )
        time.sleep(0.2)


def _server(port: int) -> socket.socket:
    """Returns a listening socket, for IPv6 too: localhost may resolve to an IPv6 address first."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


class _Partner:
    def __init__(self, connection: socket.socket):
        connection.settimeout(_ANSWER_SECONDS)
        # Two files: a write to one that is also read drops the lines that it has read ahead.
        self._from, self._to = connection.makefile("r"), connection.makefile("w")

    def say(self, **message: Any) -> None:
        self._to.write(json.dumps(message) + "\n")
        self._to.flush()

    def hear(self) -> dict[str, Any]:
        line = self._from.readline()
        if not line:
            raise ConnectionError("the process on the other host has ended: see what it printed")
        message = json.loads(line)
        if "error" in message:
            raise ConnectionError(f"the other host: {_text.printable(str(message['error']))}")
        return message


def _check(spec: pool_uri.PoolSpec, partner: _Partner, first: bool) -> Iterator[Finding]:
    """Runs the check. The first host creates the pool, and the other host attaches to it."""
    arguments = memory_check.arguments(spec)
    try:
        if first:
            pool = _core.Pool.create(arguments)
        else:
            start = partner.hear()
            same = start["arguments"] | {"paths": arguments["paths"], "token": start["token"]}
            pool = _core.Pool.attach(same)
    except errors.CxlError as error:
        why = str(error) if first else f"{error} (does it map the same memory?)"
        partner.say(error=why)
        raise ConnectionError(why) from error
    if first:
        for index in range(pool.check_words() + 2):  # Clear the doorbells too.
            pool.store_check_word(index, 0, True)
        partner.say(token=pool.token, arguments=arguments)
    partner.say(boot_id=process_identity.boot_id())
    other = partner.hear()
    stores = exchange(pool, partner, first)
    mine = pool.pass_doorbell(first=first, rounds=_ROUNDS, timeout=_ANSWER_SECONDS)
    # Once both hosts have sent this message, the pools may be closed.
    partner.say(round_trip_ns=mine)
    theirs = partner.hear()["round_trip_ns"]
    return recommend(
        pool.check_words(),
        stores,
        round_trip_ns=mine if first else theirs,
        kernels=len({process_identity.boot_id(), other["boot_id"]}),
    )


def exchange(pool: "_core.Pool", partner: _Partner, first: bool) -> Arrivals:
    """Lets each host write every word, while the other host reads the words; `first` writes first.

    Both hosts return the same: the arrivals in the worse direction.
    """
    seen = []
    # Each host writes new values, so that no earlier value counts as an arrival.
    for of_first, value in ((True, 10), (False, 20)):
        step = _write_words if of_first == first else _watch_words
        seen.append(step(pool, partner, value))
    return Arrivals(**{key: min(each[key] for each in seen) for key in seen[0]})


def _write_words(pool: "_core.Pool", partner: _Partner, value: int) -> dict[str, int]:
    """Writes each word without a write-back, then with one. Returns the fields of `Arrivals`."""
    for index in range(pool.check_words()):
        partner.hear()  # The other host now has the word in its cache.
        pool.store_check_word(index, value, False)
        partner.say(written=index)
        partner.hear()
        pool.store_check_word(index, value + 1, True)
        partner.say(written=index)
    return partner.hear()["seen"]


def _watch_words(pool: "_core.Pool", partner: _Partner, value: int) -> dict[str, int]:
    """Looks for the writes of the other host; returns the fields of `Arrivals`."""
    seen = {"plain": 0, "dropped": 0, "flushed": 0}

    def arrives(index: int, value: int, drop: bool) -> bool:
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while pool.load_check_word(index, drop) != value:
            if time.monotonic() > deadline:
                return False
        return True

    for index in range(pool.check_words()):
        pool.load_check_word(index, True)
        pool.load_check_word(index, False)
        partner.say(cached=index)
        partner.hear()
        plain = arrives(index, value, False)
        seen["plain"] += plain
        seen["dropped"] += plain or arrives(index, value, True)
        partner.say(looked=index)
        partner.hear()
        seen["flushed"] += arrives(index, value + 1, True)
    partner.say(seen=seen)
    return seen
