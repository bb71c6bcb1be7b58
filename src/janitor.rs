//! Removes what a launcher keeps on this host once it is gone. It may be killed at any moment, and so may this rank and the
//! coordinator: a process of its own waits for the launcher's end.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Waits for the end of the process `$0`, unless that is 1, which has taken the place of a launcher that is gone. Then removes
/// the folder `$1`, and those of the same run's earlier attempts, whose launchers may have been cut off before a rank came up.
/// Names end with `-` and the attempt's number.
const SCRIPT: &str = r#"
while [ "$0" != 1 ] && kill -0 "$0" 2>/dev/null; do sleep 0.2; done
rm -rf -- "$1"
for other in "${1%-*}"-*; do
    [ "${other##*-}" -lt "${1##*-}" ] 2>/dev/null && rm -rf -- "$other"
done
"#;

/// Removes `folder` on this host when this process's parent, the launcher, is gone.
///
/// # Errors
/// No process can be started.
pub fn remove_after_launcher(folder: &Path) -> io::Result<()> {
    let Some(launcher) = rustix::process::getppid() else { return Ok(()) };
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT]).arg(launcher.as_raw_nonzero().to_string()).arg(folder).process_group(0);
    shell.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn folders_go_when_the_launcher_has_gone() {
        let place = tempfile::tempdir().unwrap();
        let folder = |name: &str| place.path().join(name);
        for name in ["run-1-3", "run-1-9", "run-1-12", "run-1-10", "run-2-1", "run-1-x"] {
            std::fs::create_dir(folder(name)).unwrap();
        }
        let mut launcher = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut shell = Command::new("sh");
        let mut shell =
            shell.args(["-c", SCRIPT]).arg(launcher.id().to_string()).arg(folder("run-1-10")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(folder("run-1-3").exists(), "the launcher is still there");
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        let start = Instant::now();
        assert!(shell.wait().unwrap().code().is_some());
        eprintln!("gone after {:.1} s", start.elapsed().as_secs_f64());
        let left =
            ["run-1-3", "run-1-9", "run-1-12", "run-1-10", "run-2-1", "run-1-x"].map(|name| folder(name).exists());
        assert_eq!(left, [false, false, true, false, true, true]);
    }
}
