//! Memory limits of cgroups. The limits of the cgroup of a process and of all ancestors of this cgroup apply.

use std::path::{Path, PathBuf};

/// Limit files of a cgroup, versions 2 and 1. Above `memory.high`, the kernel does not kill the processes of a cgroup
/// but throttles them heavily.
const LIMITS: [&str; 3] = ["memory.max", "memory.high", "memory.limit_in_bytes"];

/// Returns the smallest memory limit of the cgroups of this process, in bytes. Returns `None` if there is no limit.
/// `read` returns the content of a file, or an empty string if the file does not exist.
pub fn limit(read: impl Fn(&Path) -> String) -> Option<u64> {
    let (groups, mounts) = (read(Path::new("/proc/self/cgroup")), read(Path::new("/proc/self/mountinfo")));
    let mounts = mounts.lines().filter_map(Mount::parse);
    let folders = mounts.filter_map(|mount| Some((mount.folder(&groups)?, mount.point))).flat_map(|(folder, point)| {
        folder.ancestors().take_while(|above| above.starts_with(&point)).map(Path::to_owned).collect::<Vec<_>>()
    });
    // Without a limit, the file contains `max`, or in version 1 a number that is larger than any memory.
    let number = |file: PathBuf| read(&file).trim().parse::<u64>().ok();
    folders.flat_map(|folder| LIMITS.map(|name| folder.join(name))).filter_map(number).min()
}

/// Mounted cgroup hierarchy that can limit memory.
struct Mount {
    /// Cgroup at the root of the mount.
    root: PathBuf,
    point: PathBuf,
    is_second_version: bool,
}

impl Mount {
    /// Parses a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
    fn parse(line: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut system = system.split(' ');
        let (kind, mut options) = (system.next()?, system.nth(1)?.split(','));
        let is_second_version = kind == "cgroup2";
        (is_second_version || (kind == "cgroup" && options.any(|option| option == "memory"))).then_some(Self {
            root,
            point,
            is_second_version,
        })
    }

    /// Returns the directory of the cgroup of this process. `groups` is the content of `/proc/PID/cgroup`. Returns the
    /// mount point if the cgroup is outside the mount.
    fn folder(&self, groups: &str) -> Option<PathBuf> {
        let group = groups.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_own = match self.is_second_version {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|controller| controller == "memory"),
            };
            is_own.then_some(path)
        })?;
        let below = Path::new(group).strip_prefix(&self.root).unwrap_or(Path::new(""));
        let is_outside = below.components().any(|part| part == std::path::Component::ParentDir);
        Some(if is_outside { self.point.clone() } else { self.point.join(below) })
    }
}

/// Unescapes a path of mountinfo, in which white space and backslashes are written as octal escapes.
fn unescape(path: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_owned(), |path, (escape, letter)| path.replace(escape, letter)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;
    /// Version 2, mounted by systemd.
    const SECOND: &str = "24 1 0:22 / /sys rw - sysfs sysfs rw\n\
                          30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    /// Version 1, beside a version 2 hierarchy without controllers.
    const FIRST: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                         36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n\
                         41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn of(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        let files: BTreeMap<&str, &str> =
            files.iter().copied().chain([("/proc/self/cgroup", groups), ("/proc/self/mountinfo", mounts)]).collect();
        limit(|path| files.get(path.to_str().unwrap()).map(|text| (*text).to_owned()).unwrap_or_default())
    }

    #[test]
    fn the_limit_of_a_job_applies_to_its_steps() {
        let task = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n";
        let job = ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", "314572800\n");
        let step = ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "max\n");
        assert_eq!(of(task, SECOND, &[job, step]), Some(300 * MIB));
        assert_eq!(of(task, SECOND, &[step]), None);
        let other = ("/sys/fs/cgroup/system.slice/memory.high", "104857600\n");
        assert_eq!(of(task, SECOND, &[job, step, other]), Some(100 * MIB));
        let beside = ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_8/memory.max", "1048576\n");
        assert_eq!(of(task, SECOND, &[job, beside]), Some(300 * MIB));
    }

    #[test]
    fn cgroup_v1_limits_come_from_the_memory_hierarchy() {
        let groups = "5:devices:/other\n4:cpu,memory:/slurm/uid_0/job_7/step_batch\n0::/x\n";
        let unlimited = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(of(groups, FIRST, &[unlimited]), Some(9_223_372_036_854_771_712));
        let job = ("/sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "314572800\n");
        let elsewhere = ("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1048576\n");
        assert_eq!(of(groups, FIRST, &[unlimited, job, elsewhere]), Some(300 * MIB));
    }

    #[test]
    fn containers_see_their_own_group() {
        let at_root = ("/sys/fs/cgroup/memory.max", "314572800\n");
        // Three cases: with a cgroup namespace, without a cgroup namespace, and with a cgroup outside the namespace.
        let mounted = "30 24 0:26 /docker/4a /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(of("0::/\n", SECOND, &[at_root]), Some(300 * MIB));
        assert_eq!(of("0::/docker/4a\n", mounted, &[at_root]), Some(300 * MIB));
        assert_eq!(of("0::/docker/5b\n", mounted, &[at_root]), Some(300 * MIB));
        assert_eq!(of("0::/../../5b\n", SECOND, &[at_root]), Some(300 * MIB));
        let spaced = "30 24 0:26 / /my\\040groups rw - cgroup2 cgroup rw\n";
        assert_eq!(of("0::/a\n", spaced, &[("/my groups/a/memory.max", "1048576")]), Some(MIB));
    }

    #[test]
    fn unreadable_files_impose_no_limit() {
        assert_eq!(of("", "", &[]), None);
        assert_eq!(of("4:memory\nx\n", "1 2\n - \n3 4 5 6 7 - cgroup2\n", &[]), None);
    }
}
