//! Emulates several hosts. Each host has its own namespaces for network, host name, processes and mounts, its own
//! `/tmp` and `/dev/shm`, and an ssh server. A bridge connects the hosts. Links can be cut, and hosts can be stopped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{TestDir, lambert, tree};

/// Prefix of bridge names. The process ID of the creator follows.
const BRIDGE: &str = "lmb";

/// Hosts on a private network.
pub struct Network {
    hosts: Vec<Host>,
    number: u32,
    bridge: String,
    key: String,
    /// Environment variables of the processes on the hosts. Contains only variables that differ from those of this
    /// machine.
    environment: Vec<(&'static str, String)>,
}

/// One of the hosts.
pub struct Host {
    /// Host name.
    pub name: String,
    /// IPv4 address.
    pub address: String,
    /// IPv6 address.
    pub six: String,
    /// `unshare` process. When it ends, the host stops.
    unshare: Child,
    /// First process of the host.
    init: u32,
    /// Network interface that connects the host to the bridge.
    plug: String,
}

impl Network {
    /// Creates `count` hosts that share the folder of `dir`. If this machine cannot create hosts, prints a message and
    /// returns `None`.
    pub fn new(dir: &TestDir, count: u32) -> Option<Self> {
        Self::with(dir, count, &[])
    }

    /// Like [`Network::new`], with variables that replace the installed Open MPI by version 5.
    pub fn with(dir: &TestDir, count: u32, environment: &[(&'static str, String)]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let missing = ["unshare", "nsenter", "ip", "dropbear", "dbclient", "dropbearkey"].into_iter().find(|program| {
            !Command::new("sh").args(["-c", &format!("command -v {program} >/dev/null")]).status().unwrap().success()
        });
        if !rustix::process::geteuid().is_root() || missing.is_some() {
            eprintln!("SKIPPED: hosts are made by root, with iproute2, util-linux and dropbear; missing: {missing:?}");
            return None;
        }
        sweep();
        let (number, key) = (NEXT.fetch_add(1, Ordering::Relaxed), dir.path("ssh-key"));
        let bridge = format!("{BRIDGE}{}-{number}", std::process::id());
        sh(&format!(
            "dropbearkey -t ed25519 -f {key} 2>&1 | grep ^ssh- > {key}.pub
             ip link add {bridge} type bridge
             ip addr add 10.212.{number}.254/24 dev {bridge}
             ip addr add fd77:{number}::fe/64 dev {bridge} nodad
             ip link set {bridge} up"
        ));
        let lines = (1..=count).map(|index| format!("10.212.{number}.{index} {}\n", name_of(index)));
        std::fs::write(dir.path("hosts"), format!("127.0.0.1 localhost\n{}", lines.collect::<String>())).unwrap();
        let mut network = Self { hosts: Vec::new(), number, bridge, key, environment: environment.to_vec() };
        for index in 0..count {
            let host = network.host(dir, index + 1);
            network.hosts.push(host);
        }
        Some(network)
    }

    fn host(&self, dir: &TestDir, index: u32) -> Host {
        let (number, key) = (self.number, &self.key);
        let (address, six) = (format!("10.212.{number}.{index}"), format!("fd77:{number}::{index}"));
        let name = format!("host-{number}-{index}");
        let plug = format!("lmp{}-{number}-{index}", std::process::id() % 100_000);
        let (folder, programs) = (dir.path(""), lambert().parent().unwrap().to_str().unwrap().to_owned());
        let script = format!(
            "set -e
             hostname {name}
             mount --make-rprivate /
             mount -t tmpfs tmpfs /mnt
             mkdir /mnt/written /mnt/work /mnt/tmp /mnt/place /mnt/programs
             mount --bind {folder} /mnt/place
             mount --bind {programs} /mnt/programs
             mount -t overlay overlay -o lowerdir=/tmp,upperdir=/mnt/written,workdir=/mnt/work /mnt/tmp
             mount -t tmpfs tmpfs /dev/shm
             mount --bind {folder}/hosts /etc/hosts
             mount --bind /mnt/tmp /tmp
             mount --bind /mnt/place {folder}
             mount --bind /mnt/programs {programs}
             home=$(getent passwd root | cut -d: -f6)
             mkdir -p $home/.ssh
             mount -t tmpfs -o mode=0700 tmpfs $home/.ssh
             cp {key}.pub $home/.ssh/authorized_keys
             mount -t proc proc /proc
             exec dropbear -F -E -R -s -e -r {key} -P /mnt/pid"
        );
        let unshare = Command::new("unshare")
            .args(["--net", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", &script])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let init = first_child(unshare.id());
        let bridge = &self.bridge;
        sh(&format!(
            "ip link add {plug} type veth peer name eth0 netns {init}
             ip link set {plug} master {bridge} up
             nsenter --target {init} --net sh -c 'ip link set lo up
             ip addr add {address}/24 dev eth0
             ip -6 addr add {six}/64 dev eth0 nodad
             ip link set eth0 up'"
        ));
        Host { name, address, six, unshare, init, plug }
    }

    /// Returns the host with this index, from 0.
    pub fn host_at(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Environment variables of programs on the hosts.
    pub fn environment(&self) -> &[(&'static str, String)] {
        &self.environment
    }

    /// Address of this machine on the network.
    pub fn gateway(&self) -> String {
        format!("10.212.{}.254", self.number)
    }

    /// Arguments of `lambert run` for a run on these hosts with `ranks` ranks each.
    pub fn arguments(&self, hosts: &[usize], ranks: usize) -> Vec<String> {
        let hosts: Vec<String> = hosts.iter().map(|host| format!("{}:{ranks}", self.hosts[*host].address)).collect();
        let agent = format!("dbclient -y -y -i {}", self.key);
        let (four, btl) = match self.environment.is_empty() {
            true => (true, "tcp,self,vader"),
            false => (false, "tcp,self,sm"),
        };
        let transport = ["--mca", "btl", btl, "--mca", "btl_tcp_if_include", "eth0"];
        let daemons = match four {
            true => ["--mca", "plm_rsh_agent", &agent, "--mca", "oob_tcp_if_include", "eth0"],
            false => ["--prtemca", "plm_ssh_agent", &agent, "--prtemca", "prte_if_include", "eth0"],
        };
        let mpirun = [transport, daemons].concat();
        let sets = [format!("cluster.hosts={hosts:?}"), format!("cluster.mpirun_arguments={mpirun:?}")];
        sets.into_iter().flat_map(|set| ["--set".to_owned(), set]).collect()
    }

    /// Drops all packets from and to the host from now on.
    pub fn cut(&self, host: usize) {
        sh(&format!("ip link set {} nomaster", self.hosts[host].plug));
    }

    /// Reconnects the host.
    pub fn reconnect(&self, host: usize) {
        sh(&format!("ip link set {} master {}", self.hosts[host].plug, self.bridge));
    }

    /// Limits the sending rate of each host to `megabits` Mbit/s.
    pub fn slow_down(&self, megabits: u32) {
        for host in &self.hosts {
            // The burst is the amount of data that is sent in a hundredth of a second, but at least one packet.
            let burst = (u64::from(megabits) * 1_000_000 / 8 / 100).max(65_536);
            let limit = format!("{megabits}mbit burst {burst} latency 50ms");
            let shape = format!("tc qdisc replace dev eth0 root tbf rate {limit}");
            assert!(host.command(Path::new("sh")).args(["-ec", &shape]).status().unwrap().success(), "{shape}");
        }
    }

    /// Stops the host with all its processes.
    pub fn stop(&self, host: usize) {
        super::signal(self.hosts[host].init, "-9");
    }
}

impl Host {
    /// Returns a command that runs on the host.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--net", "--uts", "--mount", "--pid", "--ipc", "--"]);
        command.arg(program);
        command
    }

    /// Folder with the files written to `/tmp` of the host, as seen from this machine.
    fn written(&self) -> PathBuf {
        Path::new("/proc").join(self.init.to_string()).join("root/mnt/written")
    }

    /// Returns the names of the files in `/tmp` and in `/dev/shm` of the host. Omits `without`, which is in `/tmp`.
    pub fn left(&self, without: &Path) -> Vec<PathBuf> {
        let names = |folder: &Path| {
            let entries = std::fs::read_dir(folder).unwrap();
            entries.map(|entry| PathBuf::from(entry.unwrap().file_name())).collect::<Vec<_>>()
        };
        let written = names(&self.written()).into_iter().filter(|name| !without.ends_with(name));
        written.chain(names(&self.shared_memory())).collect()
    }

    /// Path of `/dev/shm` of the host.
    pub fn shared_memory(&self) -> PathBuf {
        Path::new("/proc").join(self.init.to_string()).join("root/dev/shm")
    }

    /// Returns the files below a folder of `/tmp` of the host, with their text.
    pub fn files(&self, folder: &Path) -> Vec<(PathBuf, String)> {
        let files = tree(&self.written().join(folder.strip_prefix("/tmp").unwrap()));
        files.into_iter().map(|(path, bytes)| (path, String::from_utf8_lossy(&bytes).into_owned())).collect()
    }

    /// Number of bytes that the host has sent over the network.
    pub fn sent(&self) -> u64 {
        let read = self.command(Path::new("cat")).arg("/proc/net/dev").output().unwrap();
        let text = String::from_utf8(read.stdout).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
        line.split_whitespace().nth(8).unwrap().parse().unwrap()
    }

    /// Kills the ranks on the host and their launcher at once.
    pub fn kill_ranks(&self) {
        let names = "lambert-worker|orted|prted|mpirun|prterun";
        assert!(self.command(Path::new("pkill")).args(["-9", "-x", names]).status().unwrap().success());
    }

    /// Sends a signal to the coordinator on the host.
    pub fn signal_coordinator(&self, number: &str) {
        let found = self.command(Path::new("pgrep")).args(["-x", "lambert"]).output().unwrap();
        let pid = String::from_utf8(found.stdout).unwrap();
        assert!(self.command(Path::new("kill")).args([number, pid.trim()]).status().unwrap().success(), "{pid:?}");
    }

    /// Returns the command lines of the processes on the host, except the ssh server.
    pub fn processes(&self) -> Vec<String> {
        let text = self.command(Path::new("ps")).args(["-eo", "args="]).output().unwrap().stdout;
        let text = String::from_utf8_lossy(&text);
        let lines =
            text.lines().map(str::trim).filter(|line| !line.starts_with("dropbear") && !line.starts_with("ps "));
        lines.filter(|line| !line.ends_with("<defunct>")).map(str::to_owned).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.unshare.kill();
            let _ = host.unshare.wait();
        }
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).status();
    }
}

/// Name of a host in /etc/hosts: a, b, c.
fn name_of(index: u32) -> char {
    char::from(b'a' + (index - 1) as u8)
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

fn first_child(pid: u32) -> u32 {
    let start = Instant::now();
    loop {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        // The host is ready once the script has executed dropbear, because all mounts exist then.
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        let name = child.map(|child: u32| std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default());
        if let (Some(child), Some("dropbear\n")) = (child, name.as_deref()) {
            return child;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "a host has not started");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Removes the bridges of killed test programs. The hosts of these programs have already ended.
fn sweep() {
    for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let owner = name.strip_prefix(BRIDGE).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = Command::new("ip").args(["link", "del", &name]).status();
        }
    }
}
