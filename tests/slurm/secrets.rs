//! Where a secret must not be: in Slurm's folders and records, and on command lines.

use std::path::Path;
use std::process::Command;

use crate::s3_server::{BUCKET, SECRET_KEY, Server};
use crate::slurm::config;
use crate::support::Place;
use crate::support::slurm::Sandbox;

/// The variables of a store, as lines of a shell.
pub fn exports(server: &Server) -> String {
    server.environment().iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect()
}

/// A run on an S3 server, whose key a file has that the prologue reads. Whoever submits has it in the environment, and tells
/// sbatch by a variable to pass all of that on.
pub fn stay(place: &Place, sandbox: &Sandbox) {
    let server = Server::start(Path::new(&place.path("s3")), 0);
    let variables = sandbox.file("store.env", &exports(&server));
    let (file, run) = (config(place, sandbox, 1_000_000), format!("s3://{BUCKET}/secret"));
    let prologue = format!("slurm.prologue=['. {variables}']");
    let line = format!(
        ". {variables}; export SBATCH_EXPORT=ALL; exec {} submit --config {file} --run {run} --set \"{prologue}\"",
        sandbox.path("bin/lambert")
    );
    let ran = sandbox.run("sh", &["-c", &line]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let job = ran.out;
    sandbox.say(&job, 0, "\nstep 5/");
    nowhere(sandbox, &job);
    let stop = format!(". {variables}; exec {} stop {run}", sandbox.path("bin/lambert"));
    assert_eq!(sandbox.run("sh", &["-c", &stop]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
    nowhere(sandbox, &job);
    assert!(!sandbox.log(&job).contains(SECRET_KEY), "the log has the secret");
}

fn nowhere(sandbox: &Sandbox, job: &str) {
    let mut find = Command::new("grep");
    // Sockets and pipes are not read.
    find.args(["-rlaF", "--devices=skip", "--exclude-dir=home", SECRET_KEY]).arg(sandbox.folder());
    let found = find.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "files of Slurm have the secret");
    let records = [
        sandbox.administer("scontrol", &["show", "job", "--details", job]),
        sandbox.administer("sacct", &["-j", job, "--parsable2", "--format=ALL"]),
    ];
    for record in records {
        assert!(!record.contains(SECRET_KEY), "{record}");
    }
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(SECRET_KEY), "on a command line: {process:?}");
    }
}
