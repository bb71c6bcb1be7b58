#!/bin/sh
# Installs missing Debian packages of the sandbox. Needs root.
set -eu

missing=
for package in munge slurmctld slurmd slurmdbd slurm-client mariadb-server; do
    dpkg-query -W -f '${Status}' $package 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "slurm-sandbox: missing:$missing (Debian's names), and no apt-get" >&2; exit 1; }
# Prevents the packages' services from starting: Debian runs this file before it starts one.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
fi
echo "slurm-sandbox: installing Debian packages:$missing" >&2
apt-get -qq update
# shellcheck disable=SC2086  # a list of names
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
