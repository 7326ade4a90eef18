"""Runs cases on two guests, and records the result of each case."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator

from lab.guests.guest import Bench, Guest

DEVICE = "/dev/dax0.0"
POOL = f"dax:{DEVICE}"
_ENVIRONMENT = """
export PYTHONPATH=/opt/project:/opt/site JAX_PLATFORMS=cpu
cd /opt/project
"""
_MAKE_NAMESPACE = """
[ -e /dev/dax0.0 ] || ndctl create-namespace -f -e namespace0.0 -m devdax -M mem -a 2M
chmod 600 /dev/dax0.0
ls -l /dev/dax0.0
"""


class CaseFailed(Exception):
    """A case did not have the expected result."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a case.

    Attributes:
      case: its name.
      passed: whether all was as expected.
      seconds: how long it took, including waits.
      detail: what the case observed.
    """

    case: str
    passed: bool
    seconds: float
    detail: str


class Session:
    """Two guests, and the results of the cases so far."""

    def __init__(self, bench: Bench):
        self.bench = bench
        self.rows: list[Row] = []
        self.guests: list[Guest] = []
        self._port = 12340

    def boot(self) -> str:
        """Boots both guests; returns how long that took.

        If the memory file is new, the first guest prepares it. The second guest then boots only
        after the first one.
        """
        ready = self.bench.memory.with_suffix(".ready")
        first = Guest(self.bench, 0)
        self.guests = [first]
        if ready.exists():
            self.guests.append(Guest(self.bench, 1))
        times = [first.wait_until_up()]
        if len(self.guests) == 1:
            self._prepare(first)
            self.guests.append(Guest(self.bench, 1))
        times.append(self.guests[1].wait_until_up())
        for guest in self.guests:
            self._prepare(guest)
        ready.touch()
        return f"up after {times[0]:.0f} and {times[1]:.0f} s"

    def reboot(self, number: int) -> str:
        """Boots a guest again after it was killed; returns how long that took."""
        self.guests[number] = Guest(self.bench, number)
        seconds = self.guests[number].wait_until_up()
        self._prepare(self.guests[number])
        return f"up after {seconds:.0f} s"

    def _prepare(self, guest: Guest) -> None:
        script = _MAKE_NAMESPACE
        if self.bench.cxl:
            script = f"bash /host/project/guests/cxl_region.sh; chmod 600 {DEVICE}; ls -l {DEVICE}"
        status, output = guest.run(script)
        if status != 0:
            raise CaseFailed(f"no {DEVICE} on guest {guest.number}: {output}")

    def close(self) -> None:
        """Ends the guests."""
        for guest in self.guests:
            guest.kill()

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[list[str]]:
        """Runs a case: the body of the `with`. Adds a row with its result.

        The body appends details to the list that it gets, and raises CaseFailed if the case fails.
        """
        began = time.monotonic()
        details: list[str] = []
        passed = True
        print(f"... {name}", flush=True)
        try:
            yield details
        except CaseFailed as error:
            passed = False
            details.append(str(error))
        row = Row(name, passed, round(time.monotonic() - began, 1), "; ".join(details))
        self.rows.append(row)
        verdict = "ok" if passed else "FAILED"
        print(f"{verdict:7}{row.seconds:7.1f} s  {name}: {row.detail}", flush=True)

    def start(self, number: int, command: str) -> int:
        """Starts a command on a guest."""
        return self.guests[number].start(self._environment() + command)

    def run(self, number: int, command: str, seconds: float = 120) -> tuple[int | None, str]:
        """Runs a command on a guest."""
        return self.guests[number].run(self._environment() + command, seconds)

    def _environment(self) -> str:
        slow = self.bench.slow
        limits = {"HEARTBEAT_TIMEOUT": 5, "CONNECT_TIMEOUT": 80, "TIMEOUT": 300}
        changed = (f"export JAX_CXL_{name}={value * slow:g}" for name, value in limits.items())
        return _ENVIRONMENT + ("\n".join(changed) + "\n" if slow != 1 else "")

    def expect(
        self, number: int, command: str, *words: str, status: int = 0, seconds: float = 120
    ) -> str:
        """Runs a command. The case fails unless it has this status and prints all `words`."""
        found, output = self.run(number, command, seconds)
        self._check(output, f"{command} on host {number}: status {found}", found == status, words)
        return output

    def coordinator(self, host: int = 0) -> str:
        """Returns an address for a job's coordination service. Each call returns another one."""
        self._port += 1
        return f"10.77.0.{host + 1}:{self._port}"

    def start_pair(
        self, command: str, order: tuple[int, int] = (0, 1), swap: bool = False
    ) -> list[int]:
        """Starts a process of a job on each host.

        Args:
          command: the command, in which `{process}` and `{coordinator}` are replaced.
          order: which host starts first.
          swap: whether process 0 is on host 1.

        Returns:
          The number of the script on each host.
        """
        coordinator = self.coordinator(1 if swap else 0)
        scripts = {}
        for host in order:
            process = 1 - host if swap else host
            scripts[host] = self.start(
                host, command.format(process=process, coordinator=coordinator)
            )
            if host == order[0] and order != (0, 1):
                time.sleep(5)
        return [scripts[0], scripts[1]]

    def wait_pair(
        self, scripts: list[int], *words: str, status: int = 0, seconds: float = 240
    ) -> list[str]:
        """Waits for both processes. The case fails unless they end and print as expected.

        Args:
          scripts: the number of the script on each host, from `start_pair`.
          words: patterns that each process has to print.
          status: the exit status that each process must have.
          seconds: how long to wait for each.
        """
        outputs = []
        for host, script in enumerate(scripts):
            found, output = self.guests[host].wait(script, seconds)
            self._check(output, f"host {host}: status {found}", found == status, words)
            outputs.append(output)
        return outputs

    def wait_for(self, host: int, script: int, words: str, seconds: float = 240) -> None:
        """Waits until a script has printed `words`. The case fails if that takes too long."""
        if not self.guests[host].wait_for(script, words, seconds):
            output = self.guests[host].output(script)
            raise CaseFailed(f"host {host} did not print {words!r}: {output[-1500:]}")

    @staticmethod
    def _check(output: str, what: str, good: bool, words: tuple[str, ...]) -> None:
        absent = [word for word in words if not re.search(word, output, re.DOTALL)]
        if not good or absent:
            lacks = f", without {absent}" if absent else ""
            raise CaseFailed(f"{what}{lacks}: {output[-1500:]}")
