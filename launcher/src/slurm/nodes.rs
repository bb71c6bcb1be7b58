//! Nodes of the current job, from Slurm's environment variables.

use lambert_config::run::Host;

/// Maximum number of nodes. A longer node list is an error.
const MAX_NODES: usize = 100_000;

/// Returns the nodes of the current job with their task counts. The list is empty if the variables are missing or
/// cannot be parsed.
pub fn of_job() -> Vec<Host> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    hosts(&variable("SLURM_JOB_NODELIST"), &variable("SLURM_TASKS_PER_NODE")).unwrap_or_default()
}

/// Returns Slurm's name of this node. `None` if this host is no node of the current job: `salloc` may start its command
/// on another host.
pub fn own() -> Option<String> {
    std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty())
}

/// Returns the GPUs per node of the current job, or 0 if Slurm sets no variable.
pub fn gpus() -> usize {
    std::env::var("SLURM_GPUS_ON_NODE").ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Returns the CPUs that each node of the current job has for a rank, if `ranks` ranks run on `nodes` nodes. `None` for
/// `nodes`: all nodes of the job. Returns `None` if Slurm's variable is missing or cannot be parsed.
pub fn cpus_per_rank(ranks: usize, nodes: Option<usize>) -> Option<usize> {
    share_of_cpus(&std::env::var("SLURM_JOB_CPUS_PER_NODE").ok()?, ranks, nodes)
}

/// Divides the CPUs of the smallest node among its ranks. `cpus` has the CPUs of all nodes, e.g. `64(x2),32`.
fn share_of_cpus(cpus: &str, ranks: usize, nodes: Option<usize>) -> Option<usize> {
    let cpus = repeat(cpus)?;
    let ranks_per_node = ranks.div_ceil(nodes.unwrap_or(cpus.len()).max(1));
    Some(cpus.into_iter().min()? / ranks_per_node.max(1))
}

fn hosts(list: &str, tasks: &str) -> Option<Vec<Host>> {
    let (names, tasks) = (expand(list)?, repeat(tasks)?);
    let is_sound = names.len() == tasks.len();
    is_sound.then(|| names.into_iter().zip(tasks).map(|(name, ranks)| Host { name, ranks }).collect())
}

/// Expands a node list, e.g. `n[01-03,7],login`.
fn expand(list: &str) -> Option<Vec<String>> {
    let (mut names, mut rest) = (Vec::new(), list);
    while !rest.is_empty() {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let prefix = &rest[..end];
        rest = &rest[end..];
        match rest.strip_prefix('[') {
            None => names.push(prefix.to_owned()),
            Some(inner) => {
                let (ranges, behind) = inner.split_once(']')?;
                for range in ranges.split(',') {
                    numbers(range, MAX_NODES - names.len())?.for_each(|number| names.push(format!("{prefix}{number}")));
                }
                rest = behind;
            }
        }
        // A multi-dimensional name, which continues after the bracket, is not supported.
        rest = if rest.is_empty() { rest } else { rest.strip_prefix(',')? };
    }
    Some(names)
}

/// Expands a range, e.g. `7` or `01-03`, and keeps leading zeros. Returns `None` for more than `most` numbers.
fn numbers(range: &str, most: usize) -> Option<impl Iterator<Item = String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (width, first, last) = (first.len(), first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
    (last.checked_sub(first)? < most).then(|| (first..=last).map(move |number| format!("{number:0width$}")))
}

/// Expands repeated numbers, e.g. `4(x2),3`.
fn repeat(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if times > MAX_NODES - numbers.len() {
            return None;
        }
        numbers.extend(std::iter::repeat_n(number.parse::<usize>().ok()?, times));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_lists_are_expanded() {
        let names = |list: &str| expand(list).map(|names| names.join(" "));
        assert_eq!(names("n1").as_deref(), Some("n1"));
        assert_eq!(names("n[1-3],login").as_deref(), Some("n1 n2 n3 login"));
        assert_eq!(names("gpu-[008-010,12],a-b[7]").as_deref(), Some("gpu-008 gpu-009 gpu-010 gpu-12 a-b7"));
        for unknown in ["n[1-3", "n[3-1]", "n[a]", "r[1-2]n[1-2]", "n[1-99999999]", "n[0-18446744073709551615]"] {
            assert_eq!(names(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn ranks_share_the_cpus_of_the_smallest_node() {
        assert_eq!(share_of_cpus("64(x2),32", 24, None), Some(4));
        assert_eq!(share_of_cpus("64(x3)", 16, Some(2)), Some(8), "one node is excluded");
        assert_eq!(share_of_cpus("4", 8, None), Some(0));
        assert_eq!(share_of_cpus("", 8, None), None);
        assert_eq!(share_of_cpus("4(x", 8, None), None);
    }

    #[test]
    fn each_node_has_its_tasks() {
        let reported = |list, tasks| {
            let hosts = hosts(list, tasks)?;
            Some(hosts.iter().map(|host| format!("{}:{}", host.name, host.ranks)).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(reported("n[1-3]", "4(x2),3").as_deref(), Some("n1:4 n2:4 n3:3"));
        assert_eq!(reported("n1", "1").as_deref(), Some("n1:1"));
        for (list, tasks) in [("n[1-3]", "4(x2)"), ("n[1-3]", "4(x4)"), ("", ""), ("n1", "x"), ("n1", "4(x999999999)")]
        {
            assert_eq!(reported(list, tasks), None, "{list} {tasks}");
        }
    }
}
