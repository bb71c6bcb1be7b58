//! Removes the files of a launcher and of MPI from this host after the launcher has ended. Launcher, rank and
//! coordinator may be killed at any time, so a separate process waits for the end of the launcher.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Shell script. Waits until process `$0`, the launcher, has ended. If `$0` is 1, the launcher has already ended, and
/// process 1 has adopted the rank. Under srun, the launcher is a slurmstepd of root, which cannot be signalled or
/// seen in /proc. `tail --pid` waits for it nevertheless, because it treats EPERM as a sign that the process is alive.
///
/// Then removes the directories `$@`. Also removes directories of this user from earlier attempts of the run, because
/// their launchers may have been killed before a rank started. The names of these directories end with `-` and the
/// attempt number (`lambert_store::host_paths::scratch_name`). Finally removes the shared-memory files of NCCL that
/// belong to this user and that no process has mapped. Such files remain if processes are killed during initialization.
///
/// The script ignores SIGTERM, which a supervisor may send to all processes.
const SCRIPT: &str = r#"
trap "" TERM
[ "$0" = 1 ] || tail --pid="$0" --sleep-interval=0.2 -f /dev/null || exit
for folder; do
    rm -rf -- "$folder"
    for other in "${folder%-*}"-*; do
        [ -O "$other" ] && [ "${other##*-}" -lt "${folder##*-}" ] 2>/dev/null && rm -rf -- "$other"
    done
done
for left in /dev/shm/nccl-*; do
    [ -O "$left" ] && ! grep -qsF "$left" /proc/[0-9]*/maps && rm -f -- "$left"
done
"#;

/// Starts a process that removes `folders` on this host after the launcher, the parent of this process, has ended.
///
/// # Errors
/// The process cannot be started.
pub fn remove_after_launcher(folders: &[PathBuf]) -> io::Result<()> {
    let Some(launcher) = rustix::process::getppid() else { return Ok(()) };
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT]).arg(launcher.as_raw_nonzero().to_string()).args(folders).process_group(0);
    shell.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_store::host_paths::scratch_name;
    use std::time::{Duration, Instant};

    #[test]
    fn folders_are_removed_after_the_launcher_ends() {
        let place = tempfile::tempdir().unwrap();
        let folder = |parent: &str, attempt| place.path().join(parent).join(scratch_name("/run", attempt));
        let (own, shared) = (folder("tmp", 10), folder("shm", 10));
        let earlier = [folder("tmp", 3), folder("tmp", 9), folder("shm", 9)];
        let others = [
            folder("tmp", 12),
            own.with_file_name(scratch_name("/other", 1)),
            own.with_file_name(scratch_name("/run", 1) + "x"),
        ];
        let all = [&own, &shared].into_iter().chain(&earlier).chain(&others);
        all.for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        // Two NCCL segments. No process maps the first segment, and this process maps the second segment.
        let segments =
            ["left", "held"].map(|name| PathBuf::from(format!("/dev/shm/nccl-{}{name}", std::process::id())));
        segments.iter().for_each(|segment| std::fs::write(segment, [0; 4096]).unwrap());
        let held = std::fs::File::open(&segments[1]).unwrap();
        // SAFETY: the call maps one page of an open file at an address that the kernel chooses.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&held),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        let mut launcher = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", SCRIPT, &launcher.id().to_string()]).args([&own, &shared]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(earlier[0].exists(), "the launcher is still running");
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        let start = Instant::now();
        assert!(shell.wait().unwrap().code().is_some());
        eprintln!("gone after {:.1} s", start.elapsed().as_secs_f64());
        assert_eq!(segments.each_ref().map(|segment| segment.exists()), [false, true]);
        std::fs::remove_file(&segments[1]).unwrap();
        assert!([&own, &shared].into_iter().chain(&earlier).all(|folder| !folder.exists()));
        assert!(others.iter().all(|folder| folder.exists()), "folders of a later attempt and of another run stay");
    }

    /// slurmstepd belongs to root and the ranks do not, so `kill -0` fails with EPERM.
    #[test]
    fn a_launcher_of_another_user_is_waited_for() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can act as another user");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(place.path(), Some(65534), Some(65534)).unwrap();
        let folder = place.path().join("shm-1-1");
        let mut launcher = Command::new("sleep").arg("1000").spawn().unwrap();
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let as_nobody = || {
            let mut command = Command::new("setpriv");
            command.args(nobody);
            command
        };
        assert!(as_nobody().arg("mkdir").arg(&folder).status().unwrap().success());
        let mut shell = as_nobody();
        let shell = shell.args(["sh", "-c", SCRIPT, &launcher.id().to_string()]).arg(&folder);
        let mut shell = shell.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let waited = (folder.exists(), shell.try_wait().unwrap().is_none());
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        shell.wait().unwrap();
        assert_eq!(waited, (true, true), "the launcher is still running");
        assert!(!folder.exists());
    }
}
