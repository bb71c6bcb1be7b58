#!/bin/sh
# Stops and removes everything that up.sh has created: processes, files and the user. The packages stay.
#
#   cluster/slurm-sandbox/down.sh [FOLDER]     /tmp/lambert-slurm if absent
set -eu

folder=${1:-/tmp/lambert-slurm}
[ "$0" != "$folder/down" ] && [ $# = 0 ] && [ "$(basename "$0")" = down ] && folder=$(dirname "$0")

[ "$(id -u)" = 0 ] || { echo "slurm-sandbox: must be run as root" >&2; exit 1; }
[ -f "$folder/user" ] || { echo "slurm-sandbox: no sandbox in $folder" >&2; exit 0; }
user=$(cat "$folder/user")

# PATTERN SIGNAL: signals all processes whose environment contains PATTERN.
signal() {
    grep -lsz "^$1\$" /proc/[0-9]*/environ | while IFS=/ read -r _ _ pid _; do
        kill "-$2" "$pid" 2>/dev/null || true
    done
}
alive() { grep -qsz "^LAMBERT_SLURM_SANDBOX=$folder\$" /proc/[0-9]*/environ; }

# Jobs first, with their child processes, whose environment is the user's and names the configuration.
if [ -f "$folder/slurmctld.pid" ]; then
    SLURM_CONF=$folder/slurm.conf timeout 5 scancel --full --signal=KILL --user="$user" 2>/dev/null || true
    SLURM_CONF=$folder/slurm.conf timeout 5 scancel --user="$user" 2>/dev/null || true
fi
for pid in $(ps -o pid= -u "$user" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
for daemon in "$folder"/slurmd.*.pid "$folder/slurmctld.pid" "$folder/slurmdbd.pid" "$folder/database/pid" "$folder/munged.pid"; do
    [ ! -f "$daemon" ] || kill "$(cat "$daemon")" 2>/dev/null || true
done
tries=50
while alive && [ $tries -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.1
done
signal "LAMBERT_SLURM_SANDBOX=$folder" KILL
while ps -u "$user" >/dev/null 2>&1; do
    for pid in $(ps -o pid= -u "$user"); do kill -9 "$pid" 2>/dev/null || true; done
    sleep 0.1
done
# Logs of its runs, and its files in world-writable folders.
find /tmp /dev/shm -maxdepth 1 -user "$user" -exec rm -rf {} + 2>/dev/null || true
userdel "$user" 2>/dev/null || true
rm -rf "$folder"
