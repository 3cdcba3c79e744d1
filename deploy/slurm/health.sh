#!/bin/sh
# The health of a node of Slurm, as its prolog or while it is idle; in slurm.conf:
#   Prolog=/opt/parlab/health.sh
# or
#   HealthCheckProgram=/opt/parlab/health.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=IDLE
# It ends within 20 s. A node with a fault is drained, with the fault as its reason: the prolog by its exit code, which
# also puts the job back into the queue, the check of an idle node by scontrol. PARLAB_PYTHON is a Python with
# parlab[node]; root reads the kernel's log.
PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin" # Slurm sets none, or a short one
python="${PARLAB_PYTHON:-/opt/parlab/bin/python}"
state="${PARLAB_HEALTH_STATE:-/var/lib/parlab-health.json}"
node="${SLURMD_NODENAME:-$(hostname -s)}"

faults="$(timeout --kill-after=1 18 "$python" -m runners.telemetry.faults --state "$state" ${PARLAB_HEALTH_OPTIONS:-} 2>&1)"
code=$?
case "$code" in
    0) exit 0 ;;
    1) reason="$(printf '%s' "$faults" | grep -v '^noted: ' | head -n 3 | tr '\n' ';' | cut -c 1-200)" ;;
    124 | 137) reason="its drivers do not answer" ;;
    # A node without parlab is no bad node.
    *) exit 0 ;;
esac
scontrol update NodeName="$node" State=DRAIN Reason="parlab: ${reason:-unknown fault}"
exit 1
