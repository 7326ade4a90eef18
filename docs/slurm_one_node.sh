#!/usr/bin/env bash
# Starts Slurm with this machine as its only node, runs a command under it, and stops Slurm again.
# For root, on Debian or Ubuntu:
#
#   apt-get install --no-install-recommends slurm-wlm munge
#   docs/slurm_one_node.sh srun -n 2 python examples/train_jit.py --steps=20
#
# All files of this Slurm lie in a new folder under /tmp: configuration, key, state, logs. The
# daemons are the script's own, on ports of their own, and a Slurm of this machine is not touched.
# The folder stays if something fails.
set -euo pipefail

(($#)) || { echo "usage: $0 COMMAND ...  (such as: srun -n 2 python train.py)" >&2; exit 2; }
((EUID == 0)) || { echo "$0 starts slurmctld and slurmd, which needs root" >&2; exit 2; }
for program in munged slurmctld slurmd srun; do
  command -v "$program" >/dev/null || {
    echo "$program is missing: apt-get install --no-install-recommends slurm-wlm munge" >&2
    exit 2
  }
done

folder=$(mktemp -d /tmp/slurm_one_node.XXXXXX)
host=$(hostname -s)
cores=$(nproc)
pids=()

# The daemons of job steps, which slurmd has started. They end by themselves soon after a step, if
# slurmctld still runs.
steps() {
  local process
  for process in $(pgrep slurmstepd); do
    if grep -qs "SLURM_CONF=$folder/" "/proc/$process/environ"; then echo "$process"; fi
  done
}

stop() {
  local status=$? left
  for _ in {1..50}; do
    left=$(steps)
    [[ -n $left ]] || break
    sleep 0.1
  done
  # shellcheck disable=SC2086
  [[ -z $left ]] || kill -9 $left 2>/dev/null || true
  ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
  wait
  if ((status)); then echo "status $status; the logs are in $folder" >&2; else rm -rf "$folder"; fi
}
trap stop EXIT

chmod 755 "$folder"
mkdir "$folder"/{munge,state,spool}
head -c 1024 /dev/urandom >"$folder/munge/key"
chmod 700 "$folder/munge"
chmod 600 "$folder/munge/key"
munged --foreground --force --num-threads=2 --key-file="$folder/munge/key" \
  --socket="$folder/munge.socket" --pid-file="$folder/munge/pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" &>"$folder/munged.out" &
pids+=($!)

# Two ports that nothing listens on.
read -r control node < <(python3 -c '
import socket
sockets = [socket.create_server(("", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in sockets))')

cat >"$folder/slurm.conf" <<END
ClusterName=one_node
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmdPort=$node
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP
END
export SLURM_CONF=$folder/slurm.conf

for _ in {1..50}; do [[ -S $folder/munge.socket ]] && break; sleep 0.1; done
slurmctld -D -c &>"$folder/slurmctld.out" &
pids+=($!)
slurmd -D -c &>"$folder/slurmd.out" &
pids+=($!)

for _ in {1..300}; do
  [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]] && break
  sleep 0.1
done
sinfo

"$@"
