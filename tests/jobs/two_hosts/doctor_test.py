"""`doctor --device`, on one host and between two, and CXL memory that the kernel uses itself."""

import concurrent.futures
import pathlib
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import pytest
import two_kernels
from absl.testing import absltest, parameterized

from jax_cxl._commands.status import doctor, hosts_check
from jax_cxl._job.pool import pool_uri


def _doctor(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jax_cxl", "doctor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class DeviceTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.uri = f"file:{folder}/pool?size=16MiB"

    def test_measures(self):
        with _doctor("--device", self.uri) as doctored:
            output, _ = doctored.communicate(timeout=60)
        self.assertEqual(doctored.returncode, 0, output)
        self.assertRegex(output, r"ok +memory: load [1-9]\d* ns, store and write-back [1-9]\d* ns")
        self.assertRegex(output, r"GB/s: loads \d+\.\d+, stores with write-backs \d+\.\d+")

    def test_with_another_host_needs_a_device(self):
        with _doctor("--with", ":1") as doctored:
            output, _ = doctored.communicate(timeout=60)
        self.assertEqual(doctored.returncode, 2, output)

    @parameterized.parameters("nowhere", "nowhere:", ":0", "nowhere:65536")
    @pytest.mark.sample(2)
    def test_wrong_addresses(self, address):
        with self.assertRaisesRegex(ValueError, "must be HOST:PORT"):
            list(hosts_check.check_between_hosts(self.uri, address))

    def test_a_host_that_cannot_be_reached_is_named(self):
        port = two_kernels.free_port()
        with mock.patch.object(hosts_check, "_ANSWER_SECONDS", 0.1):
            for address, message in (
                (f"nowhere.invalid:{port}", f"cannot reach nowhere.invalid:{port}: "),
                (f"localhost:{port}", f"nothing listens on localhost:{port}: run the same"),
                (f":{port}", f"nothing connected to port {port} within 0.1 s: run the same"),
            ):
                (finding,) = hosts_check.check_between_hosts(self.uri, address)
                self.assertEqual(finding.level, "problem")
                self.assertIn(message, finding.text)

    def test_both_hosts_say_the_same(self):
        port = two_kernels.free_port()
        commands = [("--with", f":{port}"), ("--with", f"localhost:{port}")]
        running = [_doctor("--device", self.uri, *command) for command in commands]
        outputs = [process.communicate(timeout=100)[0] for process in running]
        self.assertEqual([process.returncode for process in running], [0, 0], outputs)
        self.assertEqual(*outputs)
        self.assertIn("the same on both hosts (64 of 64 stores arrived)", outputs[0])
        self.assertIn("us each way", outputs[0])
        self.assertIn("run under one kernel", outputs[0])

    def test_lines_that_arrive_together(self):
        one, other = socket.socketpair()
        with one, other:
            partner = hosts_check._Partner(one)
            other.sendall(b'{"number": 1}\n{"number": 2}\n')
            self.assertEqual(partner.hear(), {"number": 1})
            partner.say(number=3)
            other.shutdown(socket.SHUT_WR)
            self.assertEqual(partner.hear(), {"number": 2})

    @parameterized.parameters("127.0.0.1", "localhost")
    def test_a_connection_to_itself_is_not_the_other_host(self, host):
        port = two_kernels.free_port()
        connect, sleep = socket.create_connection, time.sleep
        servers = []

        def first_to_itself(address, timeout):
            if servers:
                return connect(address, timeout=timeout)
            own = connect(("127.0.0.1", port), timeout, source_address=("127.0.0.1", port))
            servers.append(threading.Thread(target=listen))
            return own

        def listen():
            with hosts_check._connect("", port) as connection:
                connection.sendall(b"server")

        def pause(seconds):
            if servers[0].ident is None:
                servers[0].start()
            sleep(seconds)

        with (
            mock.patch.object(socket, "create_connection", first_to_itself),
            mock.patch.object(time, "sleep", pause),
            hosts_check._connect(host, port) as connection,
        ):
            self.assertEqual(connection.recv(6), b"server")
        servers[0].join()

    @pytest.mark.long
    def test_hosts_that_map_different_memory(self):
        port = two_kernels.free_port()
        other = self.uri.replace("/pool?", "/another?")
        running = [
            _doctor("--device", self.uri, "--with", f":{port}"),
            _doctor("--device", other, "--with", f"localhost:{port}"),
        ]
        for process in running:
            output, _ = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 1, output)
            self.assertIn("does it map the same memory?", output)

    def test_a_job_keeps_its_pool(self):
        from jax_cxl import _core

        path = self.uri.removeprefix("file:").partition("?")[0]
        pathlib.Path(path).touch(mode=0o600)
        spec = pool_uri.parse(f"file:{path}?size=16MiB")
        pool = _core.Pool.create(spec.for_core() | {"world_size": 1})
        with _doctor("--device", self.uri) as doctored:
            output, _ = doctored.communicate(timeout=60)
        self.assertEqual(doctored.returncode, 1, output)
        self.assertIn("is in use by", output)
        del pool


class _Host:
    """A pool on a host whose caches are not coherent with those of other hosts."""

    def __init__(self, memory: dict[int, int], writes_through: bool):
        self._memory = memory
        self._writes_through = writes_through
        self._cache: dict[int, int] = {}

    def check_words(self) -> int:
        return 4

    def store_check_word(self, index: int, value: int, write_back: bool) -> None:
        self._cache[index] = value
        if write_back or self._writes_through:
            self._memory[index] = value

    def load_check_word(self, index: int, drop: bool) -> int:
        if drop:
            self._cache.pop(index, None)
        return self._cache.setdefault(index, self._memory.get(index, 0))


class _Connection:
    """An end of a connection between two threads."""

    def __init__(self, into: queue.Queue, out: queue.Queue):
        self.say = lambda **message: into.put(message)
        self.hear = lambda: out.get(timeout=60)


def _exchange(hosts) -> hosts_check.Arrivals:
    """Runs the check of two hosts; returns what both found."""
    there, back = queue.Queue(), queue.Queue()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        both = [
            threads.submit(hosts_check.exchange, host, connection, first)
            for host, connection, first in (
                (hosts[0], _Connection(there, back), True),
                (hosts[1], _Connection(back, there), False),
            )
        ]
    assert both[0].result() == both[1].result()
    return both[0].result()


class IncoherentTest(parameterized.TestCase):
    @parameterized.parameters(
        (False, (0, 0, 4), "are not coherent; use coherence=flush"),
        (True, (0, 4, 4), "drops are; use coherence=flush"),
    )
    def test_is_seen(self, writes_through, expected, words):
        memory: dict[int, int] = {}
        hosts = [_Host(memory, writes_through) for _ in range(2)]
        found = _exchange(hosts)
        self.assertEqual(found, hosts_check.Arrivals(*expected))
        findings = hosts_check.recommend(4, found, round_trip_ns=900, kernels=2)
        texts = [finding.text for finding in findings]
        self.assertIn("0.45 us each way", texts[1])
        self.assertIn(words, texts[2])

    def test_stores_that_do_not_arrive_are_a_problem(self):
        stores = hosts_check.Arrivals(plain=0, dropped=0, flushed=63)
        (finding,) = hosts_check.recommend(64, stores, round_trip_ns=1, kernels=2)
        self.assertEqual(finding.level, "problem")


class TakenMemoryTest(absltest.TestCase):
    """A sysfs like that of a machine whose kernel has turned CXL memory into NUMA nodes."""

    def setUp(self):
        super().setUp()
        self.sysfs = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for number, processors in ((0, "0-7\n"), (1, "\n"), (2, "\n")):
            self.write(f"devices/system/node/node{number}/cpulist", processors)
            meminfo = f"Node {number} MemTotal:       524288 kB\nNode {number} MemFree: 1 kB\n"
            self.write(f"devices/system/node/node{number}/meminfo", meminfo)
        device = self.sysfs / "devices/region0/dax0.0"
        for name, text in (("size", "536870912"), ("align", "0x200000"), ("target_node", "1")):
            self.write(f"devices/region0/dax0.0/{name}", f"{text}\n")
        (self.sysfs / "bus/dax/devices").mkdir(parents=True)
        (self.sysfs / "bus/dax/devices/dax0.0").symlink_to(device)
        (self.sysfs / "bus/dax/drivers/kmem").mkdir(parents=True)
        (device / "driver").symlink_to(self.sysfs / "bus/dax/drivers/kmem")

    def write(self, path: str, text: str) -> None:
        (self.sysfs / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sysfs / path).write_text(text)

    def test_says_so_and_how_to_get_it_back(self):
        taken, node = doctor.check_dax(self.sysfs)
        self.assertEqual(taken.level, "problem")
        self.assertIn("NUMA node 1 (mode system-ram)", taken.text)
        self.assertIn("daxctl offline-memory dax0.0", taken.text)
        self.assertIn("daxctl reconfigure-device --mode=devdax --force dax0.0", taken.text)
        self.assertIn("NUMA node 2 has 512 MiB and no processors", node.text)
        self.assertIn("efi=nosoftreserve", node.text)


if __name__ == "__main__":
    absltest.main()
