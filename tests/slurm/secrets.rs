//! Secrets must appear neither in folders and records of Slurm nor on command lines.

use std::path::Path;
use std::process::Command;

use crate::s3_server::{BUCKET, SECRET_KEY, Server};
use crate::slurm::config;
use crate::support::TestDir;
use crate::support::slurm::Sandbox;

/// Returns the variables of a store as shell lines.
pub fn exports(server: &Server) -> String {
    server.environment().iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect()
}

/// Submits a run in an S3 store. The key of the store is in a file that the prologue reads. The user who submits has
/// the key in the environment and sets a variable that makes sbatch export the whole environment.
pub fn secrets_are_not_exposed(dir: &TestDir, sandbox: &Sandbox) {
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let variables = sandbox.file("store.env", &exports(&server));
    let (file, run) = (config(dir, sandbox, 1_000_000), format!("s3://{BUCKET}/secret"));
    let prologue = format!("slurm.prologue=['. {variables}']");
    let line = format!(
        ". {variables}; export SBATCH_EXPORT=ALL; exec {} submit --config {file} --run {run} --set \"{prologue}\"",
        sandbox.path("bin/lambert")
    );
    let ran = sandbox.run("sh", &["-c", &line]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let job = ran.out;
    sandbox.wait_for_log(&job, 0, "\nstep 5/");
    assert_not_exposed(sandbox, &job);
    let stop = format!(". {variables}; exec {} stop {run}", sandbox.path("bin/lambert"));
    assert_eq!(sandbox.run("sh", &["-c", &stop]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
    assert_not_exposed(sandbox, &job);
    assert!(!sandbox.log(&job).contains(SECRET_KEY), "the log has the secret");
}

fn assert_not_exposed(sandbox: &Sandbox, job: &str) {
    let mut find = Command::new("grep");
    // Sockets and pipes are not read.
    find.args(["-rlaF", "--devices=skip", "--exclude-dir=home", SECRET_KEY]).arg(sandbox.folder());
    let found = find.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "files of Slurm have the secret");
    let records = [
        sandbox.run_as_root("scontrol", &["show", "job", "--details", job]),
        sandbox.run_as_root("sacct", &["-j", job, "--parsable2", "--format=ALL"]),
    ];
    for record in records {
        assert!(!record.contains(SECRET_KEY), "{record}");
    }
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(SECRET_KEY), "on a command line: {process:?}");
    }
}
