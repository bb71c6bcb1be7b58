//! Batch scripts that prepare a dataset: a job array with one task per part, and a job that merges the parts. The
//! scripts contain the configuration, so later edits to the configuration file have no effect.

use lambert_config::PrepConfig;
use lambert_store::hash::sha256;

use super::directives::{self, DirectiveError, in_shell};

/// Parameters of the scripts.
#[derive(Debug, Clone)]
pub struct PrepJob<'a> {
    /// Complete configuration as TOML.
    pub toml: &'a str,
    /// Path of lambert on the nodes.
    pub lambert: &'a str,
    /// Working directory of the jobs.
    pub folder: &'a str,
    /// Number of parts.
    pub parts: usize,
    /// Parts to submit.
    pub tasks: &'a [usize],
    /// Threads per task.
    pub threads: usize,
    /// Memory per task, bytes.
    pub memory: u64,
}

/// Renders the script of the job array.
pub fn render_tasks(config: &PrepConfig, job: &PrepJob<'_>) -> Result<String, DirectiveError> {
    let tasks: Vec<String> = job.tasks.iter().map(usize::to_string).collect();
    let part = format!(" --part \"$SLURM_ARRAY_TASK_ID/{}\"", job.parts);
    render(config, job, format!("--array={}", tasks.join(",")), &part)
}

/// Renders the script of the job that merges all parts after job array `array`. If a task of the array fails, Slurm
/// removes the merge job from the queue.
pub fn render_join(config: &PrepConfig, job: &PrepJob<'_>, array: &str) -> Result<String, DirectiveError> {
    let script = format!("--dependency=afterok:{array}");
    render(config, job, script, "")
}

fn render(config: &PrepConfig, job: &PrepJob<'_>, option: String, part: &str) -> Result<String, DirectiveError> {
    let name = job_name(&config.output.url);
    let mut options = vec![format!("--job-name={name}"), option, "--ntasks=1".to_owned()];
    options.push("--kill-on-invalid-dep=yes".to_owned());
    options.push(format!("--cpus-per-task={}", job.threads));
    options.extend(directives::common(&config.slurm, job.folder));
    let mut script = directives::head(&options, &config.slurm.prologue)?;
    // With the hash, the delimiter of the here-document cannot occur in the configuration.
    let end = format!("LAMBERT_{}", &sha256(job.toml.as_bytes())[..16]);
    script += &format!(
        "\nexec {} prep --config /dev/stdin --threads {} --memory {}{part} <<'{end}'\n{}\n{end}\n",
        in_shell(job.lambert),
        job.threads,
        job.memory,
        job.toml.trim_end()
    );
    Ok(script)
}

fn job_name(url: &str) -> String {
    let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    format!("prep-{last}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::Slurm;

    #[test]
    fn an_array_job_and_a_dependent_join_are_rendered() {
        let mut config = PrepConfig::default();
        config.output.url = "/data/it's mine/".into();
        config.slurm = Slurm { time: Some("30".into()), prologue: vec!["module load x".into()], ..Slurm::default() };
        let job = PrepJob {
            toml: "[output]\nurl = \"$HOME\"\n",
            lambert: "/opt/lam bert/lambert",
            folder: "/home/me",
            parts: 4,
            tasks: &[1, 3],
            threads: 2,
            memory: 1 << 30,
        };
        let tasks = render_tasks(&config, &job).unwrap();
        for line in ["\"--job-name=prep-it's mine\"", "--array=1,3", "--cpus-per-task=2", "--time=30", "--requeue"] {
            assert!(tasks.contains(&format!("#SBATCH {line}\n")), "{line}: {tasks}");
        }
        let line = "\nexec '/opt/lam bert/lambert' prep --config /dev/stdin --threads 2 --memory 1073741824 \
                    --part \"$SLURM_ARRAY_TASK_ID/4\" <<'LAMBERT_";
        assert!(tasks.contains(line) && tasks.contains("'\n[output]\nurl = \"$HOME\"\nLAMBERT_"), "{tasks}");
        let join = render_join(&config, &job, "12").unwrap();
        assert!(join.contains("#SBATCH --dependency=afterok:12\n") && !join.contains("--part"), "{join}");
        [tasks, join].iter().for_each(|script| directives::shellcheck(script));
        config.output.url = "/data/a\nb".into();
        assert!(render_tasks(&config, &job).is_err() && render_join(&config, &job, "12").is_err());
    }
}
