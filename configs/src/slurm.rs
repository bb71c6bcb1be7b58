//! The queue: what `lambert submit` asks Slurm for.

use serde::{Deserialize, Serialize};

/// What a job of the run asks Slurm for. What is absent is left to the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Slurm partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account that is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Quality of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Features that the nodes must have, as Slurm writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Time limit, as Slurm writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Nodes; each has the same number of ranks.
    #[serde(skip_serializing_if = "is_default_nodes")]
    pub nodes: usize,
    /// GPUs of a node; 0 asks for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpus_per_node: usize,
    /// Whether the nodes are shared with no other job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// How long before the time limit the run is asked for a checkpoint, seconds. Slurm may ask 60 s earlier.
    #[serde(skip_serializing_if = "is_default_lead")]
    pub lead_seconds: u64,
    /// How often the job is queued again after a failure.
    #[serde(skip_serializing_if = "is_default_requeues")]
    pub requeues: u32,
    /// The file for what the job prints, as sbatch names it.
    #[serde(skip_serializing_if = "is_default_output")]
    pub output: String,
    /// Names of variables that the job is given. Slurm keeps their values in files: secrets are none of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub export: Vec<String>,
    /// Lines of shell that the batch script runs first: modules, a file with credentials.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prologue: Vec<String>,
    /// Further options of sbatch, one each, as `--mail-type=END`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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
            exclusive: false,
            lead_seconds: 120,
            requeues: 3,
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

fn is_default_output(output: &str) -> bool {
    output == Slurm::default().output
}

impl Slurm {
    /// The time limit in seconds; `None` where there is none, or it is no time (which [`Slurm::faults`] says).
    pub fn time_seconds(&self) -> Option<u64> {
        match time_limit(self.time.as_deref()?)? {
            TimeLimit::Seconds(seconds) => Some(seconds),
            TimeLimit::Unlimited => None,
        }
    }

    /// Ranks on each node, of `ranks` in all.
    pub fn ranks_per_node(&self, ranks: usize) -> usize {
        ranks.div_ceil(self.nodes.max(1))
    }

    /// Whether nothing is asked for beside what is the rule.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What is wrong, as key and message, with a job of so many ranks.
    pub fn faults(&self, ranks: usize) -> Vec<(&'static str, String)> {
        let mut faults = self.faults_of_any();
        let mut wrong = |key, message: String| faults.push((key, message));
        if self.nodes == 0 || !ranks.is_multiple_of(self.nodes.max(1)) {
            let message =
                format!("is {}; each node has the same number of ranks, and cluster.ranks is {ranks}", self.nodes);
            wrong("slurm.nodes", message);
        }
        if let (Some(limit), Some(time)) = (self.time_seconds(), &self.time)
            && limit <= self.lead_seconds
        {
            let message = format!("is {}; the time limit {time:?} leaves nothing before it", self.lead_seconds);
            wrong("slurm.lead_seconds", message);
        }
        if !(1..=65535).contains(&self.lead_seconds) {
            wrong("slurm.lead_seconds", format!("is {}; must be from 1 to 65535", self.lead_seconds));
        }
        faults
    }

    /// What is wrong with the tasks of a preparation, each of which is one process.
    pub fn faults_of_tasks(&self) -> Vec<(&'static str, String)> {
        let mut faults = self.faults_of_any();
        if self.nodes != 1 {
            faults.push(("slurm.nodes", format!("is {}; a task of a preparation has one node", self.nodes)));
        }
        if self.gpus_per_node != 0 {
            let message = format!("is {}; a preparation has no use for GPUs", self.gpus_per_node);
            faults.push(("slurm.gpus_per_node", message));
        }
        faults
    }

    fn faults_of_any(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let mut wrong = |key, message: String| faults.push((key, message));
        if let Some(time) = self.time.as_deref().filter(|time| time_limit(time).is_none()) {
            let forms = "MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]";
            wrong("slurm.time", format!("{time:?} is no time as Slurm writes it: {forms}"));
        }
        let words = [&self.partition, &self.account, &self.qos, &self.constraint].map(Option::as_deref);
        for (key, word) in ["slurm.partition", "slurm.account", "slurm.qos", "slurm.constraint"].into_iter().zip(words)
        {
            if word.is_some_and(|word| word.is_empty() || word.contains(char::is_control)) {
                wrong(key, "must be a word".to_owned());
            }
        }
        if self.output.is_empty() || self.output.contains(char::is_control) {
            wrong("slurm.output", "must be a path".to_owned());
        }
        for name in &self.export {
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                wrong("slurm.export", format!("{name:?} is no name of a variable"));
            } else if speaks_of_secrets(name) {
                let message =
                    format!("{name}: Slurm would keep its value in files; let slurm.prologue read it from one");
                wrong("slurm.export", message);
            }
        }
        for option in &self.options {
            let name = option.split(['=', ' ']).next().unwrap_or_default();
            if !option.starts_with('-') || option.contains(char::is_control) {
                wrong("slurm.options", format!("{option:?} is no option: --NAME=VALUE is expected"));
            } else if let Some((_, key)) = OWN.iter().find(|(own, _)| *own == name) {
                wrong("slurm.options", format!("{option:?}: {key}"));
            }
        }
        faults
    }
}

/// Options that other keys say, or that a job of lambert must have as it is.
const OWN: [(&str, &str); 18] = [
    ("--partition", "slurm.partition says it"),
    ("--account", "slurm.account says it"),
    ("--qos", "slurm.qos says it"),
    ("--constraint", "slurm.constraint says it"),
    ("--time", "slurm.time says it"),
    ("--nodes", "slurm.nodes says it"),
    ("--ntasks", "cluster.ranks says it"),
    ("--ntasks-per-node", "cluster.ranks and slurm.nodes say it"),
    ("--cpus-per-task", "device.threads says it"),
    ("--gpus-per-node", "slurm.gpus_per_node says it"),
    ("--exclusive", "slurm.exclusive says it"),
    ("--output", "slurm.output says it"),
    ("--export", "slurm.export says it"),
    ("--array", "lambert submit --prep says it"),
    ("--signal", "slurm.lead_seconds says it"),
    ("--no-requeue", "a job of lambert is queued again"),
    ("--open-mode", "a job of lambert appends"),
    ("--comment", "a job of lambert counts its failures there"),
];

/// Whether a variable of this name likely holds a secret.
fn speaks_of_secrets(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "_KEY", "SAS"].iter().any(|word| name.contains(word))
}

/// A time limit of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeLimit {
    Seconds(u64),
    Unlimited,
}

/// Reads a time limit as Slurm writes it; `None` if it is no time.
fn time_limit(time: &str) -> Option<TimeLimit> {
    if ["UNLIMITED", "INFINITE"].contains(&time.to_ascii_uppercase().as_str()) {
        return Some(TimeLimit::Unlimited);
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
    Some(TimeLimit::Seconds(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_slurm_reads_them() {
        let of = time_limit;
        let seconds = |seconds| Some(TimeLimit::Seconds(seconds));
        assert_eq!(of("90"), seconds(5400));
        assert_eq!(of("90:30"), seconds(5430));
        assert_eq!(of("1:30:05"), seconds(5405));
        assert_eq!(of("2-1"), seconds(176_400));
        assert_eq!(of("2-1:30"), seconds(178_200));
        assert_eq!(of("0-0:0:7"), seconds(7));
        assert_eq!(of("unlimited"), Some(TimeLimit::Unlimited));
        for wrong in ["", "1h", "1:2:3:4", "-5", "1-", "1-2:3:4:5", "99999999999999999999"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    fn faults(change: impl FnOnce(&mut Slurm)) -> String {
        let mut slurm = Slurm::default();
        change(&mut slurm);
        slurm.faults(4).into_iter().map(|(key, message)| format!("{key}: {message}\n")).collect()
    }

    #[test]
    fn every_fault_is_said() {
        assert_eq!(faults(|_| {}), "");
        let said = faults(|slurm| slurm.time = Some("1h".into()));
        assert!(said.starts_with("slurm.time: \"1h\" is no time as Slurm writes it: MINUTES, "), "{said}");
        let said = faults(|slurm| slurm.time = Some("2".into()));
        assert_eq!(said, "slurm.lead_seconds: is 120; the time limit \"2\" leaves nothing before it\n");
        let prep = Slurm { nodes: 2, gpus_per_node: 1, time: Some("1h".into()), ..Slurm::default() };
        let keys: Vec<_> = prep.faults_of_tasks().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["slurm.time", "slurm.nodes", "slurm.gpus_per_node"]);
        let short = Slurm { time: Some("1".into()), ..Slurm::default() };
        assert_eq!(short.faults_of_tasks(), [], "nobody saves a checkpoint there");
        let said = faults(|slurm| slurm.nodes = 3);
        assert!(said.starts_with("slurm.nodes: is 3; each node has the same number of ranks"), "{said}");
        let said = faults(|slurm| slurm.export = vec!["HF_HOME".into(), "AWS_SECRET_ACCESS_KEY".into(), "a b".into()]);
        assert_eq!(said.lines().count(), 2, "{said}");
        assert!(said.contains("AWS_SECRET_ACCESS_KEY: Slurm would keep its value in files"), "{said}");
        let options = ["--mail-type=END", "--time=4", "gpu", "--mem=a\nb"];
        let said = faults(|slurm| slurm.options = options.map(str::to_owned).into());
        assert_eq!(said.lines().count(), 3, "{said}");
        assert!(said.contains("\"--time=4\": slurm.time says it"), "{said}");
    }
}
