//! `lambert submit --prep`: submits the preparation of a dataset to Slurm, as a job array and a job that merges the
//! parts.

use std::path::Path;

use lambert_config::{Layers, exit};
use lambert_data_prep::prep;
use serde_json::json;

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::slurm::cluster;
use crate::slurm::prep_script::{self, PrepJob};

#[derive(Debug, thiserror::Error)]
enum PrepJobError {
    #[error("--tasks: no part {task}: expected 0 to {}", parts.saturating_sub(1))]
    NoPart { task: usize, parts: usize },
    #[error("cannot write the configuration as TOML")]
    Toml(#[from] toml::ser::Error),
    #[error("cannot submit the job that merges the parts; cancelled array job {array}")]
    Join { array: String, source: cluster::ClusterError },
}

/// Prints or submits the batch scripts.
pub fn submit(arguments: &cli::Submit, folder: &Path, lambert: &str) -> Outcome {
    let config = prep::load(&Layers::from_process(&arguments.sets), &arguments.config)?;
    let toml = config.to_toml().map_err(|error| Failure::failed(PrepJobError::Toml(error)))?;
    let parts = usize::from(arguments.parts);
    let tasks = tasks(parts, &arguments.tasks).map_err(Failure::usage)?;
    let (name, threads) = (folder.to_string_lossy(), usize::from(arguments.threads));
    let memory = arguments.memory;
    prep::PrepMemory::new(memory, threads).map_err(Failure::usage)?;
    let job = PrepJob { toml: &toml, lambert, folder: &name, parts, tasks: &tasks, threads, memory };
    let array = prep_script::render_tasks(&config, &job).map_err(Failure::usage)?;
    let join = |array: &str| prep_script::render_join(&config, &job, array).map_err(Failure::usage);
    if arguments.dry_run {
        console::result(&format!("{array}\n{}", join("ARRAY")?.trim_end())).map_err(Failure::failed)?;
        return Ok(exit::DONE);
    }
    cluster::check(&config.slurm, folder).map_err(Failure::usage)?;
    let array = cluster::submit(&array).map_err(Failure::usage)?;
    let join = cluster::submit(&join(&array)?);
    let join = join.map_err(|source| {
        let _ = cluster::cancel(&array);
        Failure::usage(PrepJobError::Join { array: array.clone(), source })
    })?;
    let text = match arguments.json {
        true => json!({ "array": array, "join": join }).to_string(),
        false => format!("array job {array} prepares the parts, job {join} merges them"),
    };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Returns the selected parts, or all parts if none is selected.
fn tasks(parts: usize, named: &[usize]) -> Result<Vec<usize>, PrepJobError> {
    let mut tasks: Vec<usize> = if named.is_empty() { (0..parts).collect() } else { named.to_vec() };
    tasks.sort_unstable();
    tasks.dedup();
    match tasks.iter().find(|task| **task >= parts) {
        Some(task) => Err(PrepJobError::NoPart { task: *task, parts }),
        None => Ok(tasks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_tasks_are_parts() {
        assert_eq!(tasks(4, &[]).unwrap(), [0, 1, 2, 3]);
        assert_eq!(tasks(4, &[3, 1, 3]).unwrap(), [1, 3]);
        assert_eq!(tasks(4, &[4]).unwrap_err().to_string(), "--tasks: no part 4: expected 0 to 3");
    }
}
