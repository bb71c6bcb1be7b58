//! A real Slurm on this machine, for as long as it lives: cluster/slurm-sandbox, in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Ran, copy, lambert};

/// Where the scripts are.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/slurm-sandbox");

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(90);

/// A Slurm with three nodes. Its folder is also the name of the user that jobs belong to.
pub struct Sandbox {
    folder: PathBuf,
}

impl Sandbox {
    /// Brings it up, with the two programs and libtorch where its user can read them; `None`, loudly, where that cannot be.
    pub fn start() -> Option<Self> {
        let script = |name: &str| Command::new(Path::new(SCRIPTS).join(name));
        let has_packages = || script("packages.sh").status().is_ok_and(|status| status.success());
        if !rustix::process::geteuid().is_root() || !has_packages() {
            eprintln!("SKIPPED: a Slurm of its own needs root and Debian's packages");
            return None;
        }
        let sandbox = Self { folder: PathBuf::from(format!("/tmp/lambert-slurm-{}", std::process::id())) };
        let port = 20_000 + std::process::id() % 500 * 20;
        let up = script("up.sh").arg(&sandbox.folder).env("SANDBOX_PORT", port.to_string()).output().unwrap();
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        let programs = sandbox.path("bin");
        std::fs::create_dir(&programs).unwrap();
        for program in [lambert(), lambert().with_file_name("lambert-worker")] {
            std::fs::copy(&program, Path::new(&programs).join(program.file_name().unwrap())).unwrap();
        }
        let libtorch = std::env::var("LIBTORCH").expect("cargo sets LIBTORCH, from .cargo/config.toml");
        copy(&Path::new(&libtorch).join("lib"), Path::new(&sandbox.path("lib")));
        Some(sandbox)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A path in the user's home.
    pub fn path(&self, name: &str) -> String {
        self.folder.join("home").join(name).to_str().unwrap().to_owned()
    }

    /// The user's own is what is there under this name.
    pub fn give(&self, name: &str) -> String {
        let path = self.path(name);
        let owner = format!("{}:", self.folder.file_name().unwrap().to_str().unwrap());
        assert!(Command::new("chown").args(["-R", &owner, &path]).status().unwrap().success());
        path
    }

    /// Runs a command as the user, in its home.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        let mut command = Command::new(self.folder.join("as-user"));
        command.arg(program).args(arguments).current_dir(self.path("")).stdin(Stdio::null());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }

    /// `lambert` as the user.
    pub fn lambert(&self, arguments: &[&str]) -> Ran {
        self.run(&self.path("bin/lambert"), arguments)
    }

    /// Submits a run; the job's number.
    pub fn submit(&self, config: &str, run: &str, more: &[&str]) -> String {
        let ran = self.lambert(&[&["submit", "--config", config, "--run", run], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.parse::<u32>().is_ok(), "{:?} is no job's number", ran.out);
        ran.out
    }

    /// A command as root, in the way of those who run the cluster.
    pub fn administer(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        let output = command.args(arguments).env("SLURM_CONF", self.folder.join("slurm.conf")).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until squeue says that a job is in this state.
    pub fn state(&self, job: &str, state: &str) {
        self.wait(&format!("job {job} to be {state}"), || {
            (self.run("squeue", &["--states=all", "-h", "-j", job, "-o", "%T"]).out == state).then_some(())
        });
    }

    /// Writes a file of the user's.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        let folder = Path::new(&path).parent().unwrap();
        assert_eq!(self.run("mkdir", &["-p", folder.to_str().unwrap()]).code, 0);
        std::fs::write(&path, content).unwrap();
        self.give(name)
    }

    /// What accounting has of a job, as `STATE|CODE:SIGNAL`, once it has ended.
    pub fn ended(&self, job: &str) -> String {
        self.wait("the job's end", || {
            let record = self.run("sacct", &["-nPX", "-j", job, "-o", "state,exitcode"]).out;
            (!["RUNNING", "PENDING", "REQUEUED", "RESIZING", "COMPLETING", "SUSPENDED", "PREEMPTED"]
                .iter()
                .any(|state| record.starts_with(state))
                && !record.is_empty())
            .then_some(record)
        })
    }

    /// What a job has printed.
    pub fn log(&self, job: &str) -> String {
        std::fs::read_to_string(self.path(&format!("lambert-{job}.log"))).unwrap_or_default()
    }

    /// Waits until a job's log has this text behind its first `from` bytes; where it ends there.
    pub fn say(&self, job: &str, from: usize, text: &str) -> usize {
        let found = || self.log(job).get(from..)?.find(text).map(|at| from + at + text.len());
        self.wait(&format!("{text:?} in the log of job {job}"), found)
    }

    /// The processes of the user whose command line begins so: the highest number is the youngest's.
    pub fn processes(&self, line: &str) -> Vec<u32> {
        let user = self.folder.file_name().unwrap().to_str().unwrap();
        let found = Command::new("pgrep").args(["-u", user, "-f", &format!("^{line}")]).output().unwrap();
        String::from_utf8_lossy(&found.stdout).lines().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits for something.
    pub fn wait<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            if begun.elapsed() > PATIENCE {
                let print = "tail -n 40 *.log; squeue";
                panic!("waited for {what} in vain: {}", self.run("sh", &["-c", print]).out);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = Command::new(Path::new(SCRIPTS).join("down.sh")).arg(&self.folder).status();
    }
}
