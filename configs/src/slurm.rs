//! Slurm options for `lambert submit`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::load::ConfigIssue;

/// Slurm options of a job. Absent options use the defaults of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Partition. Absent: the default partition of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Account to charge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Quality of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Required node features, in Slurm's syntax.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Time limit, in Slurm's syntax, for example `"4:00:00"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Number of nodes. Each node has the same number of ranks.
    #[serde(skip_serializing_if = "is_default_nodes")]
    #[schemars(!skip_serializing_if)]
    pub nodes: usize,
    /// Number of GPUs per node. 0: no GPUs.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(!skip_serializing_if)]
    pub gpus_per_node: usize,
    /// CPUs per rank. Absent: `device.threads` for ranks on CPUs, and 8 for ranks on GPUs.
    ///
    /// A rank on a GPU has threads for the backward pass, the loader, MPI and NCCL. If a node has fewer than 8 CPUs for
    /// each of its ranks, the ranks share its CPUs equally.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<usize>,
    /// Allocates whole nodes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub exclusive: bool,
    /// Time between the signal to save a checkpoint and the time limit of the job, in seconds.
    ///
    /// Slurm may send the signal up to 60 s earlier.
    #[serde(skip_serializing_if = "is_default_lead")]
    #[schemars(!skip_serializing_if)]
    pub lead_seconds: u64,
    /// Maximum number of requeues after failures (exit code 1) without a new checkpoint between them.
    #[serde(skip_serializing_if = "is_default_requeues")]
    #[schemars(!skip_serializing_if)]
    pub requeues: u32,
    /// Time for which a requeued job excludes nodes that caused failures, in hours. 0: no node is excluded.
    ///
    /// At most two nodes are excluded, and only if the partition has enough others.
    #[serde(skip_serializing_if = "is_default_exclude_hours")]
    #[schemars(!skip_serializing_if)]
    pub exclude_hours: f64,
    /// Log file of the job, as a filename pattern of sbatch. The job appends to the file.
    #[serde(skip_serializing_if = "is_default_output")]
    #[schemars(!skip_serializing_if)]
    pub output: String,
    /// Names of environment variables to export to the job.
    ///
    /// Slurm stores the values in files, so lambert rejects names that look like names of secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub export: Vec<String>,
    /// Shell lines that the batch script runs first, for example to load modules or credentials.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub prologue: Vec<String>,
    /// Additional sbatch options, one per entry, for example `--mail-type=END`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub options: Vec<String>,
}

impl Default for Slurm {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            constraint: None,
            time: None,
            nodes: 1,
            gpus_per_node: 0,
            cpus_per_task: None,
            exclusive: false,
            lead_seconds: 120,
            requeues: 3,
            exclude_hours: 24.0,
            output: "lambert-%j.log".to_owned(),
            export: Vec::new(),
            prologue: Vec::new(),
            options: Vec::new(),
        }
    }
}

fn is_default_nodes(nodes: &usize) -> bool {
    *nodes == Slurm::default().nodes
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn is_default_lead(seconds: &u64) -> bool {
    *seconds == Slurm::default().lead_seconds
}

fn is_default_requeues(requeues: &u32) -> bool {
    *requeues == Slurm::default().requeues
}

fn is_default_exclude_hours(hours: &f64) -> bool {
    *hours == Slurm::default().exclude_hours
}

fn is_default_output(output: &str) -> bool {
    output == Slurm::default().output
}

impl Slurm {
    /// Returns the time limit in seconds. `None` if the limit is absent, unlimited or invalid. [`Slurm::issues`]
    /// reports an invalid limit.
    pub fn time_seconds(&self) -> Option<u64> {
        match time_limit(self.time.as_deref()?)? {
            SlurmTime::Seconds(seconds) => Some(seconds),
            SlurmTime::Unlimited => None,
        }
    }

    /// Returns the ranks per node for `ranks` ranks in total.
    pub fn ranks_per_node(&self, ranks: usize) -> usize {
        ranks.div_ceil(self.nodes.max(1))
    }

    /// True if all values are defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Validates a job of `ranks` ranks.
    pub fn issues(&self, ranks: usize) -> Vec<ConfigIssue> {
        let mut issues = self.common_issues();
        let lead = self.lead_seconds;
        let mut wrong = |key: &str, value: &dyn std::fmt::Display, message: String| {
            issues.push(ConfigIssue::of_value(key, value, message));
        };
        if self.nodes == 0 || !ranks.is_multiple_of(self.nodes.max(1)) {
            let message =
                format!("must divide cluster.ranks ({ranks}), because all nodes have the same number of ranks");
            wrong("slurm.nodes", &self.nodes, message);
        }
        if let (Some(limit), Some(time)) = (self.time_seconds(), &self.time)
            && limit <= lead
        {
            wrong("slurm.lead_seconds", &lead, format!("must be less than the time limit {time:?}"));
        }
        if !(self.exclude_hours >= 0.0 && self.exclude_hours.is_finite()) {
            wrong("slurm.exclude_hours", &self.exclude_hours, "must be a number of hours, or 0".to_owned());
        }
        if self.cpus_per_task == Some(0) {
            wrong("slurm.cpus_per_task", &0, "must be at least 1".to_owned());
        }
        if !(1..=65535).contains(&lead) {
            wrong("slurm.lead_seconds", &lead, "must be from 1 to 65535".to_owned());
        }
        issues
    }

    /// Returns the issue of a job in which the nodes have fewer GPUs than ranks. Each of the `ranks` ranks needs a GPU.
    pub fn gpu_issue(&self, ranks: usize) -> Option<ConfigIssue> {
        let gpus = self.gpus_per_node;
        if gpus == 0 || self.ranks_per_node(ranks) <= gpus {
            return None;
        }
        // The ranks are divided equally among the nodes, at the latest with one rank per node.
        let needed = (ranks.div_ceil(gpus)..=ranks).find(|nodes| ranks.is_multiple_of(*nodes))?;
        let message = format!("{ranks} ranks need {needed} nodes of {gpus} GPUs; set slurm.nodes = {needed}");
        Some(ConfigIssue::new("slurm.nodes", message))
    }

    /// Validates the options for the jobs of `lambert submit --prep`. Each of these jobs is a single process.
    pub fn task_issues(&self) -> Vec<ConfigIssue> {
        let mut issues = self.common_issues();
        if self.nodes != 1 {
            issues.push(ConfigIssue::of_value("slurm.nodes", self.nodes, "a preparation job uses one node"));
        }
        if self.gpus_per_node != 0 {
            let message = "a preparation does not use GPUs";
            issues.push(ConfigIssue::of_value("slurm.gpus_per_node", self.gpus_per_node, message));
        }
        if self.cpus_per_task.is_some() {
            let message = "has no effect: --threads sets the CPUs of a preparation job";
            issues.push(ConfigIssue::new("slurm.cpus_per_task", message));
        }
        issues
    }

    fn common_issues(&self) -> Vec<ConfigIssue> {
        let mut issues = Vec::new();
        let mut wrong = |key: &str, message: String| issues.push(ConfigIssue::new(key, message));
        if let Some(time) = self.time.as_deref().filter(|time| time_limit(time).is_none()) {
            let forms = "MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]";
            wrong("slurm.time", format!("{time:?} is not a Slurm time: expected {forms}"));
        }
        let words = [&self.partition, &self.account, &self.qos, &self.constraint].map(Option::as_deref);
        for (key, word) in ["slurm.partition", "slurm.account", "slurm.qos", "slurm.constraint"].into_iter().zip(words)
        {
            if word.is_some_and(|word| word.is_empty() || word.contains(char::is_control)) {
                wrong(key, "must be non-empty, without control characters".to_owned());
            }
        }
        if self.output.is_empty() || self.output.contains(char::is_control) {
            wrong("slurm.output", "must be a path".to_owned());
        }
        for name in &self.export {
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                wrong("slurm.export", format!("{name:?} is not a variable name"));
            } else if looks_secret(name) {
                let message =
                    format!("{name}: Slurm would store its value in files; read it from a file in slurm.prologue");
                wrong("slurm.export", message);
            }
        }
        for option in &self.options {
            let name = option.split(['=', ' ']).next().unwrap_or_default();
            if !option.starts_with('-') || option.contains(char::is_control) {
                wrong("slurm.options", format!("{option:?} is not an option: expected --NAME=VALUE"));
            } else if let Some((_, key)) = RESERVED_OPTIONS.iter().find(|(own, _)| *own == name) {
                wrong("slurm.options", format!("{option:?}: {key}"));
            }
        }
        issues
    }
}

/// sbatch options that other keys control or that lambert itself sets, each with a hint for the user.
const RESERVED_OPTIONS: [(&str, &str); 18] = [
    ("--partition", "use slurm.partition"),
    ("--account", "use slurm.account"),
    ("--qos", "use slurm.qos"),
    ("--constraint", "use slurm.constraint"),
    ("--time", "use slurm.time"),
    ("--nodes", "use slurm.nodes"),
    ("--ntasks", "use cluster.ranks"),
    ("--ntasks-per-node", "use cluster.ranks and slurm.nodes"),
    ("--cpus-per-task", "use slurm.cpus_per_task"),
    ("--gpus-per-node", "use slurm.gpus_per_node"),
    ("--exclusive", "use slurm.exclusive"),
    ("--output", "use slurm.output"),
    ("--export", "use slurm.export"),
    ("--array", "use lambert submit --prep"),
    ("--signal", "use slurm.lead_seconds"),
    ("--no-requeue", "lambert requeues its jobs"),
    ("--open-mode", "lambert appends to the log"),
    ("--comment", "lambert stores the failure count there"),
];

/// True if the value of a variable with this name is probably a secret.
fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "_KEY", "SAS"].iter().any(|word| name.contains(word))
}

/// Slurm time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlurmTime {
    Seconds(u64),
    Unlimited,
}

/// Parses a Slurm time limit. Returns `None` if it is invalid.
fn time_limit(time: &str) -> Option<SlurmTime> {
    if ["UNLIMITED", "INFINITE"].contains(&time.to_ascii_uppercase().as_str()) {
        return Some(SlurmTime::Unlimited);
    }
    let (days, rest) = time.split_once('-').map_or((None, time), |(days, rest)| (Some(days), rest));
    let days: u64 = days.map_or(Some(0), |days| days.parse().ok())?;
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let units: &[u64] = match (time.contains('-'), parts.len()) {
        (false, 1) => &[60],
        (false, 2) => &[60, 1],
        (true, 1..=3) | (false, 3) => &[3600, 60, 1],
        _ => return None,
    };
    let terms = parts.iter().zip(units).map(|(part, unit)| part.checked_mul(*unit));
    let rest = terms.chain([days.checked_mul(86_400)]).try_fold(0u64, |sum, term| sum.checked_add(term?))?;
    Some(SlurmTime::Seconds(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_follow_slurm_syntax() {
        let of = time_limit;
        let seconds = |seconds| Some(SlurmTime::Seconds(seconds));
        assert_eq!(of("90"), seconds(5400));
        assert_eq!(of("90:30"), seconds(5430));
        assert_eq!(of("1:30:05"), seconds(5405));
        assert_eq!(of("2-1"), seconds(176_400));
        assert_eq!(of("2-1:30"), seconds(178_200));
        assert_eq!(of("0-0:0:7"), seconds(7));
        assert_eq!(of("unlimited"), Some(SlurmTime::Unlimited));
        for wrong in ["", "1h", "1:2:3:4", "-5", "1-", "1-2:3:4:5", "99999999999999999999"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    fn issues(change: impl FnOnce(&mut Slurm)) -> String {
        let mut slurm = Slurm::default();
        change(&mut slurm);
        slurm.issues(4).into_iter().map(|issue| format!("{issue}\n")).collect()
    }

    #[test]
    fn each_rank_needs_a_gpu() {
        let issue = |nodes, gpus_per_node, ranks| Slurm { nodes, gpus_per_node, ..Slurm::default() }.gpu_issue(ranks);
        let message = |nodes, gpus, ranks| issue(nodes, gpus, ranks).map(|issue| issue.to_string());
        for (nodes, gpus, ranks) in [(1, 0, 1024), (128, 8, 1024), (256, 8, 1024), (2, 4, 8), (1, 8, 4)] {
            assert_eq!(issue(nodes, gpus, ranks), None, "{nodes} nodes, {gpus} GPUs, {ranks} ranks");
        }
        let suggestion = "slurm.nodes: 1024 ranks need 128 nodes of 8 GPUs; set slurm.nodes = 128";
        assert_eq!(message(1, 8, 1024).as_deref(), Some(suggestion));
        assert!(message(1, 8, 18).unwrap().ends_with("set slurm.nodes = 3"), "18 ranks on 3 nodes, 6 on each");
    }

    #[test]
    fn all_invalid_options_are_reported() {
        assert_eq!(issues(|_| {}), "");
        let text = issues(|slurm| slurm.time = Some("1h".into()));
        assert!(text.starts_with("slurm.time: \"1h\" is not a Slurm time: expected MINUTES, "), "{text}");
        let text = issues(|slurm| slurm.time = Some("2".into()));
        assert_eq!(text, "slurm.lead_seconds = 120: must be less than the time limit \"2\"\n");
        let text = issues(|slurm| slurm.exclude_hours = -1.0);
        assert_eq!(text, "slurm.exclude_hours = -1: must be a number of hours, or 0\n");
        assert_eq!(issues(|slurm| slurm.exclude_hours = 0.0), "");
        assert_eq!(issues(|slurm| slurm.cpus_per_task = Some(0)), "slurm.cpus_per_task = 0: must be at least 1\n");
        let prep =
            Slurm { nodes: 2, gpus_per_node: 1, cpus_per_task: Some(1), time: Some("1h".into()), ..Slurm::default() };
        let keys: Vec<_> = prep.task_issues().into_iter().map(|issue| issue.key).collect();
        assert_eq!(keys, ["slurm.time", "slurm.nodes", "slurm.gpus_per_node", "slurm.cpus_per_task"]);
        let short = Slurm { time: Some("1".into()), ..Slurm::default() };
        assert_eq!(short.task_issues(), [], "preparations save no checkpoints");
        let text = issues(|slurm| slurm.nodes = 3);
        assert!(text.starts_with("slurm.nodes = 3: must divide cluster.ranks (4)"), "{text}");
        let text = issues(|slurm| slurm.export = vec!["HF_HOME".into(), "AWS_SECRET_ACCESS_KEY".into(), "a b".into()]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("AWS_SECRET_ACCESS_KEY: Slurm would store its value in files"), "{text}");
        let options = ["--mail-type=END", "--time=4", "gpu", "--mem=a\nb"];
        let text = issues(|slurm| slurm.options = options.map(str::to_owned).into());
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("\"--time=4\": use slurm.time"), "{text}");
    }
}
