"""Boots guests, and runs commands in them through a folder that they share with the host by 9p."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from lab.guests import image

NVDIMM_BYTES = 1026 << 20  # 1 GiB and the labels; ndctl wants a multiple of 16 MiB.
CXL_BYTES = 512 << 20
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Bench:
    """What both guests have in common.

    Attributes:
      folder: the folder for the files of this run.
      memory: the file whose pages are the shared memory.
      guest_image: the image that both guests boot.
      cxl: whether the guests see the memory as a CXL device. Otherwise they see an NVDIMM.
      slow: the factor by which everything may take longer than on a quiet machine.
    """

    folder: pathlib.Path
    memory: pathlib.Path
    guest_image: image.Image
    cxl: bool
    slow: float = 1.0

    def prepare(self) -> None:
        """Makes the folder that the guests see, and copies this checkout into it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        project = self.folder / "share" / "project"
        project.mkdir(parents=True)
        left_out = shutil.ignore_patterns("__pycache__", "*.pyi", "images")
        for source, place in image.project():
            if source.is_dir():
                shutil.copytree(source, project / place, ignore=left_out, dirs_exist_ok=True)
            else:
                (project / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, project / place)

    def devices(self, number: int) -> list[str]:
        """Returns QEMU's options for the shared memory."""
        backend = f"memory-backend-file,id=memory,share=on,mem-path={self.memory}"
        if not self.cxl:
            return [
                *("-object", f"{backend},size={NVDIMM_BYTES},align=2M"),
                *("-device", "nvdimm,memdev=memory,label-size=2M,unarmed=off"),
            ]
        labels = self.folder / f"labels{number}"
        with labels.open("wb") as file:
            file.truncate(1 << 20)
        return [
            *("-object", f"{backend},size={CXL_BYTES}"),
            *("-object", f"memory-backend-file,id=lsa,share=on,mem-path={labels},size=1M"),
            *("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1"),
            *("-device", "cxl-rp,port=0,bus=cxl.1,id=root_port,chassis=0,slot=2"),
            *("-device", "cxl-type3,bus=root_port,volatile-memdev=memory,id=cxl0,sn=0x7"),
        ]


class Guest:
    """A guest that runs from its construction until `kill`.

    QEMU emulates the processor, so no KVM is needed (`accel=tcg`). A link of two unix sockets
    connects the two guests, and no other network exists.
    """

    def __init__(self, bench: Bench, number: int):
        self.number = number
        self._bench = bench
        self._share = bench.folder / "share" / str(number)
        shutil.rmtree(self._share, ignore_errors=True)
        self._share.mkdir(parents=True)
        self._log = bench.folder / f"console{number}"
        self._control = bench.folder / f"control{number}"
        self._commands = 0
        self._started = time.monotonic()
        links = [bench.folder / f"link{n}" for n in (number, 1 - number)]
        links[0].unlink(missing_ok=True)
        modules = "nfit,nd_pmem,dax_pmem,device_dax"
        machine = "q35,nvdimm=on,accel=tcg"
        processor = "max"
        if bench.cxl:
            modules = "cxl_acpi,cxl_pci,cxl_mem"
            machine = "q35,accel=tcg,cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"
            processor = "max,hypervisor=off"  # Or the kernel refuses the region.
        boot = bench.guest_image
        command = [
            *boot.qemu,
            *("-M", machine, "-cpu", processor, "-smp", "1", "-m", "3G,slots=4,maxmem=16G"),
            *("-kernel", str(boot.kernel), "-initrd", str(boot.initrd), "-append"),
            f"console=ttyS0 quiet panic=-1 guest.number={number} guest.modules={modules}",
            *("-drive", f"file={boot.disk},format=raw,if=none,id=disk,snapshot=on"),
            *("-device", "virtio-blk-pci,drive=disk,bus=pcie.0"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", f"file:{self._log}", "-device", "virtio-rng-pci,bus=pcie.0"),
            *("-qmp", f"unix:{self._control},server=on,wait=off"),
            "-netdev",
            f"dgram,id=link,local.type=unix,local.path={links[0]},"
            f"remote.type=unix,remote.path={links[1]}",
            *(
                "-device",
                f"virtio-net-pci,bus=pcie.0,netdev=link,mac=52:54:00:77:00:0{number},romfile=",
            ),
            *(
                "-fsdev",
                f"local,id=share,path={bench.folder / 'share'},security_model=none,multidevs=remap",
            ),
            *("-device", "virtio-9p-pci,fsdev=share,mount_tag=host,bus=pcie.0"),
            *bench.devices(number),
        ]
        errors = (bench.folder / f"qemu{number}").open("w")
        self._qemu = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=subprocess.STDOUT,
        )

    def wait_until_up(self, seconds: float = 200) -> float:
        """Waits until the guest takes commands; returns the seconds since its start."""
        limit = seconds * self._bench.slow
        while not (self._share / "up").exists():
            if self._qemu.poll() is not None or time.monotonic() - self._started > limit:
                raise RuntimeError(f"guest {self.number} does not come up: {self.console()}")
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - self._started

    def console(self) -> str:
        """Returns the last lines that QEMU and the guest's kernel have printed."""
        texts = [
            path.read_text(errors="replace")[-3000:]
            for path in (self._bench.folder / f"qemu{self.number}", self._log)
            if path.exists()
        ]
        return "\n".join(texts)

    def start(self, script: str) -> int:
        """Starts a bash script on the guest; returns its number, which the other functions take."""
        number, self._commands = self._commands, self._commands + 1
        (self._share / f"{number}.sh").write_text(script)
        (self._share / f"{number}.go").touch()
        return number

    def output(self, number: int) -> str:
        """Returns what a script has printed so far."""
        path = self._share / f"{number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def status(self, number: int) -> int | None:
        """Returns the exit status of a script, or None while it runs."""
        path = self._share / f"{number}.status"
        return int(path.read_text()) if path.exists() else None

    def wait(self, number: int, seconds: float) -> tuple[int | None, str]:
        """Waits for a script; returns its exit status (None if it still runs) and its output."""
        deadline = time.monotonic() + seconds * self._bench.slow
        while self.status(number) is None and time.monotonic() < deadline and self.lives():
            time.sleep(_POLL_SECONDS)
        return self.status(number), self.output(number)

    def run(self, script: str, seconds: float = 120) -> tuple[int | None, str]:
        """Runs a script to its end."""
        return self.wait(self.start(script), seconds)

    def wait_for(self, number: int, words: str, seconds: float) -> bool:
        """Waits until a script has printed `words`; returns whether it has."""
        deadline = time.monotonic() + seconds * self._bench.slow
        while time.monotonic() < deadline and self.lives():
            if words in self.output(number):
                return True
            if self.status(number) is not None:
                break
            time.sleep(_POLL_SECONDS)
        return words in self.output(number)

    def lives(self) -> bool:
        """Returns whether QEMU runs."""
        return self._qemu.poll() is None

    def pause(self) -> None:
        """Stops the whole machine until `go_on`."""
        self._qemu.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continues a machine that was paused."""
        self._qemu.send_signal(signal.SIGCONT)

    def cut_link(self, up: bool = False) -> None:
        """Cuts the network link, or restores it."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self._control))
            # Two files: a write to one that is also read drops the lines that it has read ahead.
            answers, commands = control.makefile("r"), control.makefile("w")
            answers.readline()
            for command in (
                {"execute": "qmp_capabilities"},
                {"execute": "set_link", "arguments": {"name": "link", "up": up}},
            ):
                commands.write(json.dumps(command) + "\n")
                commands.flush()
                answers.readline()

    def kill(self) -> None:
        """Cuts the power."""
        if self.lives():
            os.kill(self._qemu.pid, signal.SIGCONT)
            self._qemu.kill()
        self._qemu.wait()
