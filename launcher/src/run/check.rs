//! `lambert run --check`: all checks of a start, without starting or writing anything.
//!
//! - [`machine`]: the worker, its libraries, and addresses to listen on

pub mod machine;

use std::cell::RefCell;
use std::net::ToSocketAddrs;
use std::path::Path;

use lambert_config::exit;
use lambert_config::run::RunConfig;
use lambert_progress::Progress;
use lambert_store::Store;
use rustix::fs::{Access, access};

use super::open_datasets::OpenDatasets;
use super::spec::RunSpec;
use super::{coordinator, cpu_warning, data_warnings, launch, run_plan};
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome, chain};
use crate::text::counted;
use crate::worker;

/// Errors of all checks, one per line.
#[derive(Debug, thiserror::Error)]
#[error("this run cannot start:{}", .0.iter().map(|problem| format!("\n  {problem}")).collect::<String>())]
struct Refused(Vec<String>);

/// Prints the plan if the run could start.
///
/// # Errors
/// All problems that were found. The exit code is 2, unless there is only one problem and it has another exit code.
pub fn check(arguments: &cli::Run) -> Outcome {
    let progress = Progress::start("checking the run");
    let mut problems = Vec::new();
    // Write access to a bucket cannot be tested without changing the bucket.
    if let Ok(store) = Store::open(&arguments.run)
        && store.is_local()
    {
        problems.extend(not_writable(Path::new(store.url())));
    }
    // The last configuration that could be parsed, even if it is invalid.
    let seen = RefCell::new(None);
    let host_pool = |config: &RunConfig| {
        seen.replace(Some(config.clone()));
        coordinator::host_pool(config)
    };
    let datasets = OpenDatasets::default();
    let validated = RunSpec::validate(arguments, host_pool, &datasets);
    if let Some(config) = seen.take() {
        problems.extend(launch::choose(&config.cluster).err().map(|error| chain(&error)));
        problems.extend(unknown_hosts(&config));
        problems.extend(machine::control_problem(&config, &coordinator::host_pool(&config)));
    }
    let lines = validated.and_then(|validated| {
        let mut lines = run_plan::summarize(validated.config(), &datasets)?.lines;
        let config = validated.config();
        let mut warnings = data_warnings::find(config, &datasets)?;
        warnings.extend(cpu_warning::find(config, validated.host_pool()));
        warnings.extend(machine::server_warnings(config));
        warnings.extend(missing_notifier(&config.notify.command));
        warnings.extend(machine::worker_warning(&validated)?);
        let device = match machine::device(&validated) {
            // For example a login node.
            Err(failure) if !machine::has_gpu_driver() => {
                warnings
                    .push(format!("{failure}; this machine has no NVIDIA driver, so a run started here would fail"));
                None
            }
            device => device?,
        };
        lines.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.extend(worker::version(validated.worker()).ok());
        lines.extend(device);
        Ok(lines)
    });
    drop(progress);
    let code = lines.as_ref().err().filter(|_| problems.is_empty()).map_or(exit::USAGE, |failure| failure.code);
    let lines = lines.unwrap_or_else(|failure| {
        problems.push(failure.to_string());
        Vec::new()
    });
    if !problems.is_empty() {
        return Err(Failure::coded(code, Refused(problems)));
    }
    console::result(&(lines.join("\n") + "\nall checks passed; nothing was started or written"))
        .map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Returns a warning if the program of `notify.command` is not on this host. The run trains without it.
fn missing_notifier(command: &[String]) -> Option<String> {
    let program = command.first()?;
    let is_missing = worker::find_program(program).is_none();
    let place = if program.contains('/') { "is not an executable file" } else { "is not in PATH" };
    is_missing.then(|| format!("notify.command: {program} {place} on this host, so nobody would be notified"))
}

/// Describes the closest existing folder at or above `path` if this user cannot write to it.
fn not_writable(path: &Path) -> Option<String> {
    let folder = path.ancestors().find(|folder| folder.exists())?;
    if !folder.is_dir() {
        return Some(format!("{} is a file; --run needs a folder", folder.display()));
    }
    let error = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("cannot write to {}: {}", folder.display(), std::io::Error::from(error)))
}

/// Maximum number of unknown hosts named.
const UNKNOWN_HOSTS: usize = 4;
/// Maximum number of threads that resolve names: a resolver may need seconds for an unknown name.
const RESOLVERS: usize = 16;

/// Returns an error message for each name in `cluster.hosts` that cannot be resolved. Many are counted.
fn unknown_hosts(config: &RunConfig) -> Vec<String> {
    let hosts = config.cluster.host_list().unwrap_or_default();
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let resolve = |name: &&str| {
        let error = (*name, 0).to_socket_addrs().err()?;
        Some(format!("cluster.hosts: cannot resolve {name}: {error}"))
    };
    let part = names.len().div_ceil(RESOLVERS).max(1);
    let problems: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = names
            .chunks(part)
            .map(|names| scope.spawn(move || names.iter().filter_map(resolve).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    first_few(problems)
}

fn first_few(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(UNKNOWN_HOSTS);
    problems.truncate(UNKNOWN_HOSTS);
    problems.extend(
        (more > 0).then(|| format!("cluster.hosts: cannot resolve {} either", counted(more as u64, "other host"))),
    );
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_hosts_are_named_up_to_a_limit() {
        let unknown = |count: usize| {
            let mut config = RunConfig::default();
            config.cluster.hosts = (0..count).map(|host| format!("h{host}.invalid:1")).collect();
            config.cluster.hosts.push("127.0.0.1:1".to_owned());
            unknown_hosts(&config)
        };
        assert_eq!(unknown(0), [""; 0]);
        let problems = unknown(40);
        assert_eq!(problems.len(), 5, "{problems:?}");
        for (host, problem) in problems[..4].iter().enumerate() {
            assert!(problem.starts_with(&format!("cluster.hosts: cannot resolve h{host}.invalid: ")), "{problem}");
        }
        assert_eq!(problems[4], "cluster.hosts: cannot resolve 36 other hosts either");
    }

    #[test]
    fn a_notifier_that_does_not_exist_is_warned_about() {
        let missing = |program: &str| missing_notifier(&[program.to_owned(), "--to".to_owned()]);
        assert_eq!((missing_notifier(&[]), missing("sh"), missing("/bin/sh")), (None, None, None));
        let shown = missing("no-such-notifier").unwrap();
        assert!(shown.starts_with("notify.command: no-such-notifier is not in PATH"), "{shown}");
        let shown = missing("./Cargo.toml").unwrap();
        assert!(shown.contains("./Cargo.toml is not an executable file"), "{shown}");
    }
}
