"""The cases that two_hosts.py runs on the guests."""

import re
import time

from lab.guests import pages
from lab.guests.session import DEVICE, POOL, CaseFailed, Session

_JOB = "python programs/job.py {process} {coordinator} "
_LOOP = "export SECONDS_TO_RUN=600 SIZES=4; " + _JOB
_STATUS = "python -m jax_cxl status"
_MODES = ("flush", "uncached", "coherent")


def boot(session: Session) -> bool:
    """Boots both guests, as the first case; returns whether they run."""
    with session.case("boot of two kernels that share one device") as details:
        details.append(session.boot())
    return session.rows[-1].passed


def short(session: Session) -> None:
    """Runs the cases in which one job uses both hosts.

    The hosts have the same name, and clocks that differ. The cases are right results, a second job
    that is refused, `status`, a pause of a host, and the death of a host.
    """
    if not boot(session):
        return
    pools = " ".join(f"'{POOL}?coherence={mode}'" for mode in (*_MODES, "flush"))
    for number, offset in ((0, -100), (1, 40)):
        session.run(number, f"hostname same; date -s @$(($(date +%s) + {offset}))")
    scripts = session.start_pair("export SECONDS_TO_RUN=900 SIZES=4,4096; " + _JOB + pools)
    with session.case("all collectives against NumPy: flush, uncached, coherent") as details:
        for host in (0, 1):
            session.wait_for(host, scripts[host], "LOOPING 3", 400)
            output = session.guests[host].output(scripts[host])
            if "WRONG" in output or output.count("right") != len(_MODES) + 1:
                raise CaseFailed(output[-1500:])
        details.append(re.search(r"checked .* of 4096", output)[0])
        details.append("hosts of equal name, clocks 140 s apart")
    with session.case("a second job on the used device is refused, on both hosts") as details:
        for host in (0, 1):
            output = session.expect(
                host, f"python programs/second_job.py {POOL}", "REFUSED .*process"
            )
        details.append(output.strip()[:200])
    with session.case("status from both hosts, without an argument") as details:
        # A clock may jump while the job runs. The jump is 40 s, because after more than 50 s JAX
        # may consider all processes dead.
        session.run(0, "date -s @$(($(date +%s) + 40))")
        for host in (0, 1):
            # Only the number of running ranks is checked: `status` takes the guest's only processor
            # from its rank, so the rank may seem to pause.
            _, output = session.run(host, _STATUS)
            if f"dax:{DEVICE}" not in output or output.count("running") != 2:
                raise CaseFailed(output[-1500:])
        details.append("both ranks run, after a jump of a clock by 40 s")
    with session.case("a host paused for 2 s") as details:
        session.guests[1].pause()
        time.sleep(2)
        session.guests[1].go_on()
        time.sleep(4)
        for host in (0, 1):
            if session.guests[host].status(scripts[host]) is not None:
                raise CaseFailed(session.guests[host].output(scripts[host])[-1500:])
        details.append("both went on")
    _kill(session, 1, scripts)


def _kill(session: Session, victim: int, scripts: list[int]) -> None:
    survivor = 1 - victim
    with session.case(f"host {victim} loses its power") as details:
        session.guests[victim].kill()
        began = time.monotonic()
        session.wait_for(survivor, scripts[survivor], "LOST", 60)
        told = time.monotonic() - began
        status, output = session.guests[survivor].wait(scripts[survivor], 60)
        match = re.search(r"LOST after ([\d.]+) s: (rank \d.*?its heartbeat stopped)", output)
        if match is None or status != 3:
            raise CaseFailed(f"status {status}: {output[-1500:]}")
        ended = time.monotonic() - began
        if ended - told > 20 * session.bench.slow:
            raise CaseFailed(f"the survivor took {ended - told:.0f} s to end")
        details.append(
            f"PeerLostError after {told:.1f} s, the survivor ended {ended - told:.1f} s later"
        )


def long(session: Session) -> None:
    """Runs the cases that `short` does not run. `short` has to run first."""
    if len(session.guests) < 2:
        return
    with session.case("reboot, and a new job on the stale device; process 0 there") as details:
        details.append(session.reboot(1))
        scripts = session.start_pair("export SIZES=4; " + _JOB + POOL, order=(1, 0), swap=True)
        session.wait_pair(scripts, "RESULTS .* right", "OVER")
        details.append("results right; its host started first")
    for program in pages.programs():
        with session.case(f"unchanged: {program.name}"):
            _run_program(session, program)
    with session.case("training of the example, tiny, against jax.lax") as details:
        losses = [_train(session, namespace) for namespace in ("cxl", "lax")]
        if losses[0] != losses[1] or not losses[0]:
            raise CaseFailed(f"losses differ: {losses}")
        details.append(f"same losses: {losses[0]}")
    with session.case("a host paused for 12 s") as details:
        scripts = _start_loop(session)
        session.guests[1].pause()
        time.sleep(12)
        session.guests[1].go_on()
        session.wait_for(0, scripts[0], "LOST", 60)
        # By the time this host continues, process 0 has ended, and with it JAX's coordination
        # service. If JAX notices that before jax_cxl does, JAX aborts the process.
        status, output = session.guests[1].wait(scripts[1], 60)
        by_jax = status == 134 and "coordination service" in output
        if not by_jax and (status != 3 or "LOST" not in output):
            raise CaseFailed(f"host 1: status {status}: {output[-1500:]}")
        details.append(
            f"PeerLostError on host 0; {'JAX' if by_jax else 'PeerLostError'} ended host 1"
        )
    with session.case("network link cut while the pool works") as details:
        scripts = _start_loop(session)
        session.guests[1].cut_link()
        time.sleep(15)
        for host in (0, 1):
            if session.guests[host].status(scripts[host]) is not None:
                raise CaseFailed(session.guests[host].output(scripts[host])[-1500:])
        session.guests[1].cut_link(up=True)
        details.append("collectives went on for 15 s")
    with session.case("the device goes away on a host while the link works") as details:
        # Unbinding the driver removes the mapping from the process, as if the link to the memory
        # were lost for good.
        session.run(1, f"echo {DEVICE.rpartition('/')[2]} > /sys/bus/dax/drivers/device_dax/unbind")
        session.wait_for(1, scripts[1], "POOL ERROR", 60)
        session.wait_for(0, scripts[0], "LOST", 60)
        session.wait_pair(scripts[:1], status=3, seconds=60)
        details.append("an error of the pool there, PeerLostError on the other host")
        session.guests[1].kill()
        session.reboot(1)
    scripts = _start_loop(session)
    _kill(session, 0, scripts)
    session.reboot(0)
    with session.case("a user without rights, and one with access to the device") as details:
        user = "su -s /bin/bash nobody -c 'cd /tmp; PYTHONPATH=/opt/project:/opt/site python "
        command = user + f"/opt/project/programs/second_job.py {POOL}'"
        session.expect(0, command, "PoolPermissionError", status=1)
        session.expect(0, f"chmod 666 {DEVICE}; {command}", "TAKEN")
        session.run(0, f"chmod 600 {DEVICE}")
        details.append("refused and accepted")
    for name, variables in _LAUNCHERS.items():
        with session.case(f"variables of {name}") as details:
            scripts = session.start_pair(
                variables + "\nexport JAX_CXL_POOL=" + POOL + "; python programs/launched.py"
            )
            session.wait_pair(scripts, "sum 2")
            details.append("jax_cxl.initialize connected the processes")
    stores(session)
    with session.case("doctor and clean on both hosts") as details:
        for host in (0, 1):
            session.expect(host, "python -m jax_cxl doctor", DEVICE)
            session.expect(host, "python -m jax_cxl clean", "nothing to remove")
        details.append("no problem found")


def stores(session: Session) -> None:
    """Runs the cases with stores and tables, which use the whole device.

    At the end the store is deleted, so that pools can use the device again.
    """
    for case, program, (command, said), found in (
        (
            "a table that one host changes, and the other host reads",
            "table.py",
            ("status", "table trained in .* 0 readers"),
            r"(\d+ takes saw .* steps)",
        ),
        (
            "a store in which one host publishes, and the other host reads",
            "store.py",
            ("store check", "weights"),
            r"READ (.*): right",
        ),
    ):
        with session.case(case) as details:
            store = f"'{POOL}?coherence=flush'"
            session.expect(0, f"python -m jax_cxl store format {store} --yes", "parity=0")
            scripts = session.start_pair(f"python programs/{program} {{process}} {store}")
            outputs = session.wait_pair(scripts, "right", seconds=900)
            session.expect(0, f"python -m jax_cxl {command} {store}", said)
            session.expect(0, f"python -m jax_cxl store delete {store}", "may be used for a pool")
            details.append(re.search(found, "".join(outputs))[1])


def _start_loop(session: Session) -> list[int]:
    scripts = session.start_pair(_LOOP + POOL)
    for host in (0, 1):
        session.wait_for(host, scripts[host], "LOOPING 3")
    return scripts


def _run_program(session: Session, program: pages.Program) -> None:
    """Runs the program with one process on each host, as mpirun would start it."""
    text = program.text.replace("{", "{{").replace("}", "}}")
    scripts = session.start_pair(
        f"{_LAUNCHERS['mpirun']}\n{program.variables}\n"
        f"export JAX_CXL_POOL={POOL} JAX_NUM_CPU_DEVICES={program.devices}\n"
        f"cat > /tmp/program.py <<'END'\n{text}END\npython /tmp/program.py"
    )
    session.wait_pair(scripts)


def _train(session: Session, namespace: str) -> list[str]:
    scripts = session.start_pair(
        f"{_LAUNCHERS['mpirun']}\nexport JAX_CXL_POOL={POOL}\n"
        "python examples/train_transformer.py --corpus=/opt/project/docs --steps=3"
        " --layers=1 --width=32 --heads=2 --sequence_length=32 --batch_size=2 --evaluate_every=3"
        f" --evaluate_size=2 --json=/tmp/run.json --collectives={namespace}\n"
        "status=$?; tr -d ' \\n' < /tmp/run.json; exit $status"
    )
    outputs = session.wait_pair(scripts, seconds=500)
    return re.findall(r'"(?:train_loss|heldout_nats_per_byte)":(\[\[.*?\]\])', outputs[0])


_LAUNCHERS = {
    "Slurm": "export SLURM_JOB_ID=17 SLURM_STEP_NODELIST=10.77.0.1 SLURM_NTASKS=2"
    " SLURM_PROCID={process} SLURM_LOCALID=0 JAX_COORDINATOR_ADDRESS={coordinator}",
    "mpirun": "export OMPI_MCA_orte_hnp_uri='1234567890.0;tcp://10.77.0.1:1'"
    " OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK={process} OMPI_COMM_WORLD_LOCAL_RANK=0"
    " JAX_COORDINATOR_ADDRESS={coordinator}",
}
