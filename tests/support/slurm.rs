//! A real Slurm on this machine in a temporary folder. The scripts in cluster/slurm-sandbox start it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{CommandOutput, copy, lambert};

/// Folder of the scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/slurm-sandbox");

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A Slurm with three nodes. The user that runs its jobs has the same name as the folder of the sandbox.
pub struct Sandbox {
    folder: PathBuf,
}

impl Sandbox {
    /// Starts the sandbox. Copies the two programs and libtorch into it, so that its user can read them. If this
    /// machine cannot start a sandbox, prints a message and returns `None`.
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

    /// Folder of the sandbox.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path in the home folder of the user.
    pub fn path(&self, name: &str) -> String {
        self.folder.join("home").join(name).to_str().unwrap().to_owned()
    }

    /// Makes the user the owner of `name` in its home folder. Returns the path.
    pub fn give_to_user(&self, name: &str) -> String {
        let path = self.path(name);
        let owner = format!("{}:", self.folder.file_name().unwrap().to_str().unwrap());
        assert!(Command::new("chown").args(["-R", &owner, &path]).status().unwrap().success());
        path
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("as-user"));
        command.arg(program).args(arguments).current_dir(self.path("")).stdin(Stdio::null());
        command
    }

    /// Starts a command as the user, in its home folder.
    pub fn start_command(&self, program: &str, arguments: &[&str]) -> Child {
        self.command(program, arguments).spawn().unwrap()
    }

    /// Runs a command as the user, in its home folder.
    pub fn run(&self, program: &str, arguments: &[&str]) -> CommandOutput {
        let Output { status, stdout, stderr } = self.command(program, arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        CommandOutput { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }

    /// Runs `lambert` as the user.
    pub fn lambert(&self, arguments: &[&str]) -> CommandOutput {
        self.run(&self.path("bin/lambert"), arguments)
    }

    /// Submits a run. Returns the job ID.
    pub fn submit(&self, config: &str, run: &str, more: &[&str]) -> String {
        let ran = self.lambert(&[&["submit", "--config", config, "--run", run], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.parse::<u32>().is_ok(), "{:?} is not a job id", ran.out);
        ran.out
    }

    /// Runs a command as root, like an administrator of the cluster.
    pub fn run_as_root(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        let output = command.args(arguments).env("SLURM_CONF", self.folder.join("slurm.conf")).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until squeue prints this state for a job.
    pub fn wait_for_state(&self, job: &str, state: &str) {
        self.wait(&format!("job {job} to be {state}"), || {
            (self.run("squeue", &["--states=all", "-h", "-j", job, "-o", "%T"]).out == state).then_some(())
        });
    }

    /// Writes a file that the user owns. Returns its path.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        let folder = Path::new(&path).parent().unwrap();
        assert_eq!(self.run("mkdir", &["-p", folder.to_str().unwrap()]).code, 0);
        std::fs::write(&path, content).unwrap();
        self.give_to_user(name)
    }

    /// Waits for the end of a job. Returns its accounting record as `STATE|CODE:SIGNAL`.
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

    /// Output of a job.
    pub fn log(&self, job: &str) -> String {
        std::fs::read_to_string(self.path(&format!("lambert-{job}.log"))).unwrap_or_default()
    }

    /// Waits until the log of a job contains `text` after its first `from` bytes. Returns the end of the match.
    pub fn wait_for_log(&self, job: &str, from: usize, text: &str) -> usize {
        let found = || self.log(job).get(from..)?.find(text).map(|at| from + at + text.len());
        self.wait(&format!("{text:?} in the log of job {job}"), found)
    }

    /// Returns the IDs of the user's processes, lowest first. Omits processes whose command line does not start with
    /// `line`.
    pub fn processes(&self, line: &str) -> Vec<u32> {
        let user = self.folder.file_name().unwrap().to_str().unwrap();
        let found = Command::new("pgrep").args(["-u", user, "-f", &format!("^{line}")]).output().unwrap();
        String::from_utf8_lossy(&found.stdout).lines().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits until `found` returns a value.
    pub fn wait<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            if begun.elapsed() > TIMEOUT {
                let print = "tail -n 40 *.log; squeue";
                panic!("timed out waiting for {what}: {}", self.run("sh", &["-c", print]).out);
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
