#!/bin/sh
# Starts a real Slurm on this machine in one folder: munge, slurmdbd with MariaDB, slurmctld and some slurmd. Run it as
# root, on Debian; packages.sh installs missing packages. down.sh removes everything except these.
#
#   cluster/slurm-sandbox/up.sh [FOLDER]     /tmp/lambert-slurm if absent; its last part is the user's name, too
#   FOLDER/as-user sinfo                     a command as the unprivileged user that jobs belong to
#
#   SANDBOX_NODES   slurmd to start, 3 if absent
#   SANDBOX_PORT    the first of the ports that are used, 26800 if absent
set -eu

folder=${1:-/tmp/lambert-slurm}
nodes=${SANDBOX_NODES:-3}
port=${SANDBOX_PORT:-26800}
user=$(basename "$folder")
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "slurm-sandbox: $*" >&2; exit 1; }
# NAME COMMAND...: retries the command a hundred times, for at least 20 s.
await() {
    name=$1 tries=100
    shift
    until timeout 5 "$@" >"$folder/log/await" 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || die "$name does not come up: $(cat "$folder/log/await"); its log is in $folder/log"
        sleep 0.2
    done
}

[ "$(id -u)" = 0 ] || die "must be run as root"
case $folder in /*) ;; *) die "$folder is not an absolute path" ;; esac
[ ! -e "$folder" ] || die "$folder exists; $here/down.sh $folder takes a sandbox down"

# 1. Packages.
"$here/packages.sh"

# 2. The folder and the user.
mkdir -p "$folder/log" "$folder/munge" "$folder/state" "$folder/database"
cp "$here/down.sh" "$folder/down"
useradd --system --create-home --home-dir "$folder/home" --shell /bin/sh "$user"
echo "$user" > "$folder/user"
cat > "$folder/as-user" <<AS_USER
#!/bin/sh
exec runuser -u $user -- env HOME='$folder/home' SLURM_CONF='$folder/slurm.conf' "\$@"
AS_USER
chmod +x "$folder/as-user"

# 3. Configuration.
password=$(head -c 24 /dev/urandom | base64 | tr -d '/+=')
host=$(hostname -s)
cat > "$folder/slurm.conf" <<CONF
ClusterName=sandbox
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$((port))
AuthType=auth/munge
# Slurm starts a requeued job once the credential of its last start has expired, by default after two minutes.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdLogFile=$folder/log/slurmd.%n
SlurmdSpoolDir=$folder/spool.%n
# Not shared: PMIx creates a folder there, named after the step.
TmpFS=$folder/tmp.%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=5
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=200000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 1))
AccountingStoragePass=$folder/munge/socket
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
NodeName=DEFAULT CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
$(for node in $(seq "$nodes"); do echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 10 + node))"; done)
PartitionName=batch Nodes=ALL Default=YES PriorityTier=1 GraceTime=20 DefaultTime=10 MaxTime=60
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF DefaultTime=10 MaxTime=60
CONF
# Without device files the nodes would be drained. These are copies of /dev/null; nothing opens them.
echo "NodeName=n[1-$nodes] Name=gpu File=$folder/gpu[0-1]" > "$folder/gres.conf"
mknod "$folder/gpu0" c 1 3
mknod "$folder/gpu1" c 1 3
(umask 077 && cat > "$folder/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((port + 1))
SlurmUser=root
PidFile=$folder/slurmdbd.pid
LogFile=$folder/log/slurmdbd
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 2))
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm
CONF
)

# 4. Daemons. down.sh identifies their descendants by this variable.
export SLURM_CONF="$folder/slurm.conf" LAMBERT_SLURM_SANDBOX="$folder"
(umask 077 && head -c 128 /dev/urandom > "$folder/munge/key")
munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/log/munged" --seed-file="$folder/munge/seed" --num-threads=2

chown mysql "$folder/database"
mariadb-install-db --no-defaults --datadir="$folder/database" --user=mysql --skip-test-db >"$folder/log/mariadb" 2>&1 ||
    die "MariaDB cannot be set up; its log is $folder/log/mariadb"
mariadbd --no-defaults --datadir="$folder/database" --user=mysql --bind-address=127.0.0.1 --port=$((port + 2)) \
    --socket="$folder/database/socket" --pid-file="$folder/database/pid" --innodb-fast-shutdown=2 \
    --innodb-lock-wait-timeout=900 >>"$folder/log/mariadb" 2>&1 &
await MariaDB mariadb-admin --no-defaults --socket="$folder/database/socket" ping
mariadb --no-defaults --socket="$folder/database/socket" <<SQL
CREATE USER slurm@localhost IDENTIFIED BY '$password'; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '$password';
GRANT ALL ON slurm.* TO slurm@localhost; GRANT ALL ON slurm.* TO slurm@'127.0.0.1';
SQL

slurmdbd
await slurmdbd sacctmgr -i add cluster sandbox
sacctmgr -i add qos patient >/dev/null
sacctmgr -i add account lab Description=sandbox Organization=sandbox >/dev/null
sacctmgr -i add user "$user" Account=lab QOS=normal,patient DefaultQOS=normal >/dev/null

slurmctld
for node in $(seq "$nodes"); do
    mkdir "$folder/spool.n$node"
    # Sticky like /tmp.
    mkdir -m 1777 "$folder/tmp.n$node"
    slurmd -N "n$node"
done
# shellcheck disable=SC2016  # the inner shell expands these two
await Slurm sh -c '[ "$(sinfo --noheader --Node --partition=batch --states=idle | wc -l)" = "$0" ]' "$nodes"
# slurmctld accepts the user after an update from slurmdbd.
# shellcheck disable=SC2016
await "the user's account" sh -c 'scontrol show assoc_mgr flags=users | grep -q "UserName=$0"' "$user"
echo "slurm-sandbox: $nodes nodes are up; run commands with $folder/as-user COMMAND, remove the sandbox with $folder/down"
