//! Common parts of batch scripts: #SBATCH lines and quoting.

use std::fmt::Write;

use lambert_config::run::Slurm;

/// An sbatch option contains a control character. For example, a line break would end the directive, and the shell
/// would execute the rest of the option.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{option:?} has a control character, which a batch script cannot contain; change the name, path or setting it comes from"
)]
pub struct DirectiveError {
    option: String,
}

/// Returns the start of a script: #SBATCH lines, then the lines of `slurm.prologue`.
pub fn head(options: &[String], prologue: &[String]) -> Result<String, DirectiveError> {
    let mut script = String::from("#!/bin/bash\n");
    for option in options {
        if option.contains(char::is_control) {
            return Err(DirectiveError { option: option.clone() });
        }
        let _ = writeln!(script, "#SBATCH {}", in_directive(option));
    }
    script += "\n";
    for line in prologue {
        let _ = writeln!(script, "{line}");
    }
    Ok(script)
}

/// Returns the sbatch options that all job scripts have in common. `folder` is the working directory.
pub fn common(slurm: &Slurm, folder: &str) -> Vec<String> {
    let named = [
        ("time", &slurm.time),
        ("partition", &slurm.partition),
        ("account", &slurm.account),
        ("qos", &slurm.qos),
        ("constraint", &slurm.constraint),
    ];
    let mut options: Vec<String> =
        named.iter().filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?))).collect();
    options.extend(slurm.exclusive.then(|| "--exclusive".to_owned()));
    options.push(format!("--chdir={folder}"));
    options.push(format!("--output={}", slurm.output));
    // Without append, a requeued job would truncate its log.
    options.extend(["--requeue", "--open-mode=append"].map(str::to_owned));
    let export = if slurm.export.is_empty() { "NONE".to_owned() } else { slurm.export.join(",") };
    options.push(format!("--export={export}"));
    options.extend(slurm.options.iter().cloned());
    options
}

/// Quotes a word of an `#SBATCH` line. sbatch parses these lines like a shell.
fn in_directive(option: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,%@+".contains(c);
    if option.chars().all(is_plain) {
        return option.to_owned();
    }
    let quoted: String =
        option.chars().flat_map(|c| ['"', '\\'].contains(&c).then_some('\\').into_iter().chain([c])).collect();
    format!("\"{quoted}\"")
}

/// Quotes a word for the shell.
pub fn in_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Fails if ShellCheck reports anything.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
pub fn shellcheck(script: &str) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut command = Command::new("shellcheck");
    let command = command.args(["--severity=style", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut check) = command.spawn() else {
        eprintln!("SKIPPED: shellcheck is missing");
        return;
    };
    check.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
