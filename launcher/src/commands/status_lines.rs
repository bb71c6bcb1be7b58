//! Text output of `lambert status`. This module only formats.

use std::collections::BTreeSet;

use lambert_control::{GpuSample, GpuStatus, RankTimes, Score};

use crate::decide::history::JobEnd;
use crate::host::now;
use crate::slurm::job::Job;
use crate::status::attention::{Attention, Comparison};
use crate::status::goodput::{Goodput, TimeCategory};
use crate::status::gpus;
use crate::status::stored::Liveness;
use crate::status::{Downtime, FailedSaves, RankStatus, Restarts, RunProgress, RunState, Status};
use crate::text::{age, clock, counted, duration, gib, percent, rate};

/// Maximum number of checkpoint names to show.
const CHECKPOINTS: usize = 5;
/// Maximum number of categories of time named.
const CATEGORIES: usize = 4;
/// Number of ranks up to which each rank has a line.
const RANKS: usize = 32;
/// Maximum number of ranks with a line if there are more than `RANKS`.
const NOTABLE: usize = 16;

/// Formats the status of a run. `job` is the Slurm job of the run, if known.
pub fn run(url: &str, status: &Status, liveness: Liveness, job: Option<&Job>) -> Vec<String> {
    let (latest, workers) = (&status.latest, &status.workers);
    let head = format!("{url} ({}): {}", status.name, state(status, liveness, job));
    let mut lines = vec![line("run", &head), line("step", &step(status))];
    if let Some(record) = &latest.record {
        let (scores, rate) = (score(&record.scores.main()), record.update.learning_rate);
        lines.push(line("loss", &format!("{:.4} ({scores}), lr {rate:.2e}", record.loss)));
    }
    let times = latest.record.as_ref().and_then(|record| record.times.ranks);
    if let Some(times) = times.filter(|_| workers.ranks.len() > 1) {
        lines.push(line("rank time", &rank_times(times, &workers.ranks)));
    }
    if let Some(bytes) = latest.record.as_ref().and_then(|record| record.peak_memory) {
        lines.push(line("memory", &format!("peak {} per rank", gib(bytes))));
    }
    if let Some(held_out) = &latest.evaluation {
        let scores = score(&held_out.scores.main());
        lines.push(line("evaluation", &format!("{scores} (step {})", held_out.step)));
        for (dataset, extra) in &held_out.extra {
            lines.push(line("", &format!("{} on {dataset}", score(&extra.scores.main()))));
        }
    }
    if let Some((noise, samples)) = latest.noise.and_then(|noise| Some((noise, noise.samples()?))) {
        let estimates = counted(noise.estimates, "estimate");
        lines.push(line("noise scale", &format!("{samples:.0} samples ({estimates})")));
    }
    lines.push(line("attempt", &attempt(status)));
    lines.extend(status.failed_saves.as_ref().map(|failed| line("saves", &failed_saves(failed, status))));
    if !status.goodput.is_empty() {
        lines.push(line("goodput", &goodput(&status.goodput)));
    }
    lines.extend(status.restarts.failures.iter().map(|downtime| failure(downtime, status)));
    lines.extend(workers.logs.iter().map(|folder| line("logs", &format!("{folder} (on each worker's host)"))));
    if status.state == RunState::Failed
        && let Some(error) = &status.error
    {
        lines.push(line("error", error));
    }
    if !status.state.is_over() && !is_waiting(job) {
        lines.extend(gpus::summary(&workers.ranks).map(|text| line("gpu", &text)));
        lines.extend(ranks(&workers.ranks, times));
    }
    lines
}

/// The status without what differs at each read.
pub fn comparable(status: &Status) -> Status {
    let mut status = Status { updated: 0.0, ..status.clone() };
    (status.goodput.until, status.goodput.seconds) = (0.0, Default::default());
    for rank in &mut status.workers.ranks {
        rank.seconds_since_heartbeat = 0.0;
        rank.gpu.iter_mut().for_each(|gpu| gpu.sample = GpuSample::default());
    }
    status
}

/// Formats a run's status as one line.
pub fn one_line(status: &Status) -> String {
    let loss = status.latest.record.as_ref();
    let loss =
        loss.map_or(String::new(), |record| format!("; loss {:.4} ({})", record.loss, score(&record.scores.main())));
    let checkpoint = status.checkpoint.as_ref().map_or(String::new(), |name| format!("; checkpoint {name}"));
    let saves = status.failed_saves.as_ref();
    let saves = saves.map_or(String::new(), |failed| format!("; saves {}", failed_saves(failed, status)));
    let error =
        status.error.as_ref().filter(|_| status.state == RunState::Restarting || status.state == RunState::Failed);
    let error = error.map_or(String::new(), |error| format!("; {error}"));
    format!("{}: step {}{loss}; attempt {}{checkpoint}{saves}{error}", status.state, step(status), attempt(status))
}

/// Formats a line with `label` in a column of 12 characters.
fn line(label: &str, text: &str) -> String {
    format!("{label:<12} {text}")
}

fn step(status: &Status) -> String {
    let RunProgress { step, steps, samples_per_second, seconds_left } = status.progress;
    // The percentage is rounded down, so that 100% appears only for a finished run.
    let share = 100 * u128::from(step) / u128::from(steps.max(1));
    let mut text = format!("{step}/{steps} ({share}%)");
    // The rate is unknown before the first step of an attempt.
    if status.state == RunState::Training && samples_per_second > 0.0 {
        text += &format!(", {} samples/s", rate(samples_per_second));
        text += &seconds_left.map_or(String::new(), |left| format!(", ETA {}", clock(left)));
    }
    text
}

fn attempt(status: &Status) -> String {
    // The count is that of this coordinator. The failures include those of earlier ones.
    let Restarts { count, failures } = &status.restarts;
    let count = (*count).max(failures.len() as u64);
    if count == 0 {
        return status.attempt.to_string();
    }
    let cost: Option<f64> = failures.iter().filter_map(|failure| failure.seconds).reduce(|sum, seconds| sum + seconds);
    let cost = cost.map_or(String::new(), |seconds| format!(", {seconds:.1} s lost"));
    format!("{} ({}{cost})", status.attempt, counted(count, "restart"))
}

/// Failed saves since the last successful one: `failing for 12 min (3 failures), last: no space left on device`.
fn failed_saves(failed: &FailedSaves, status: &Status) -> String {
    let until = if status.state.is_over() { status.updated } else { now() };
    let failures = counted(failed.count, "failure");
    format!("failing for {} ({failures}), last: {}", age(until - failed.since), failed.error)
}

/// The productive share, and the other categories with the most time.
fn goodput(goodput: &Goodput) -> String {
    let lost = goodput.by_time().into_iter().filter(|(category, _)| *category != TimeCategory::ProductiveStep);
    let shown = lost.take(CATEGORIES).filter(|(_, seconds)| *seconds >= 0.5);
    let shown: Vec<String> =
        shown.map(|(category, seconds)| format!("{} {}", category.name(), duration(seconds))).collect();
    let lost = if shown.is_empty() { String::new() } else { format!("; {}", shown.join(", ")) };
    format!("{} of {}{lost}", percent(goodput.share()), duration(goodput.total()))
}

fn failure(downtime: &Downtime, status: &Status) -> String {
    let Downtime { attempt, step, cause, .. } = downtime;
    line("failure", &format!("attempt {attempt}, step {step}: {cause}; {}", downtime.recovery(status)))
}

/// True if the job of the run is pending or suspended. The last status of the coordinator is then out of date.
fn is_waiting(job: Option<&Job>) -> bool {
    job.is_some_and(|job| job.is_pending() || job.is_suspended())
}

/// Formats a score: `mlm 6.8125, acc 5.0%`.
fn score(Score { name, loss, accuracy, .. }: &Score) -> String {
    let accuracy = accuracy.map_or(String::new(), |accuracy| format!(", acc {}", percent(accuracy)));
    format!("{name} {loss:.4}{accuracy}")
}

fn state(status: &Status, liveness: Liveness, job: Option<&Job>) -> String {
    let age = age(now() - status.updated);
    let who = format!("coordinator (pid {}, host {})", status.coordinator.pid, status.coordinator.host);
    let state = status.state;
    match (liveness, job) {
        (_, Some(job)) if job.is_pending() => format!("{state} {age} ago, queued again"),
        (_, Some(job)) if job.is_suspended() => format!("{state}, suspended with its job {age} ago"),
        (Liveness::Alive, _) => format!("{state}, updated {age} ago by its {who}"),
        (Liveness::Over, _) => format!("{state} {age} ago"),
        (Liveness::Gone, _) => {
            format!("{state}, but its {who} is gone (last update {age} ago); `lambert run` resumes the run")
        }
        (Liveness::Unknown, _) => format!("{state}, but its {who} may be gone (last update {age} ago)"),
    }
}

/// Formats a Slurm job.
pub fn job(job: &Job) -> String {
    let mut text = line("job", &format!("{}: {}", job.id, job.state.to_lowercase()));
    if let Some(reason) = &job.reason {
        text += &format!(" ({reason})");
    }
    let partition = job.partition.as_ref().map_or(String::new(), |partition| format!(" (partition {partition})"));
    match (&job.nodes, &job.start) {
        (Some(nodes), _) => text += &format!(" on {nodes}{partition}"),
        (None, Some(start)) if job.is_pending() => text += &format!(", expected to start {start}{partition}"),
        (None, None) if job.is_pending() => text += &format!(", start time unknown{partition}"),
        (None, _) => text += &partition,
    }
    if let Some(left) = job.seconds_left.filter(|_| job.is_alive() && !job.is_pending()) {
        text += &format!(", {} left", duration(left as f64));
    }
    if job.requeues > 0 {
        text += &format!(", requeued {}", counted(job.requeues.into(), "time"));
    }
    text
}

/// Formats the end of a coordinator in a Slurm job.
pub fn job_end(end: &JobEnd, now: f64) -> String {
    let step = end.step.map_or(String::new(), |step| format!(" at step {step}"));
    let excluded = match &end.excluded[..] {
        [] => String::new(),
        nodes => format!("; the next start excludes {}", nodes.join(", ")),
    };
    line("job end", &format!("{}{step}, {} ago: {}{excluded}", end.job, age(now - end.unix), end.cause))
}

/// Formats the newest checkpoints, newest first. `lambert checkpoint list` shows all checkpoints.
pub fn checkpoints(names: &[String]) -> String {
    let (shown, more) = names.split_at(names.len().min(CHECKPOINTS));
    let mut names = shown.to_vec();
    match names.first_mut() {
        Some(newest) => newest.push_str(" (latest)"),
        None => names.push("none".to_owned()),
    }
    names.extend((!more.is_empty()).then(|| format!("{} more", more.len())));
    line("checkpoints", &names.join(", "))
}

/// Formats median and range of the step time over the ranks, and the slowest rank.
fn rank_times(times: RankTimes, ranks: &[RankStatus]) -> String {
    let RankTimes { min, median, max, slowest } = times;
    let host = ranks.iter().find(|rank| rank.rank == slowest).map_or("?", |rank| rank.host.as_str());
    let (factor, unit, digits) = if max < 1.0 { (1000.0, "ms", 0) } else { (1.0, "s", 2) };
    let [min, median, max] = [min, median, max].map(|seconds| format!("{:.digits$}", factor * seconds));
    format!("median {median} {unit}/step, range {min}-{max} {unit}; slowest: rank {slowest} (host {host})")
}

/// A line per rank. Of many ranks, a summary and the ranks that need attention.
fn ranks(ranks: &[RankStatus], times: Option<RankTimes>) -> Vec<String> {
    if ranks.len() <= RANKS {
        return ranks.iter().map(rank).collect();
    }
    let comparison = Comparison::with(ranks, times);
    let notable: Vec<&RankStatus> = ranks.iter().filter(|rank| comparison.attention(rank) != Attention::None).collect();
    let more = notable.len().saturating_sub(NOTABLE);
    let mut lines: Vec<String> = summary(ranks).map(|text| line("ranks", &text)).into_iter().collect();
    lines.extend(comparison.choose(notable.into_iter(), NOTABLE).into_iter().map(rank));
    lines.extend(
        (more > 0).then(|| line("", &format!("{more} more are slow, silent or have GPU errors (`--json` lists all)"))),
    );
    lines
}

/// Summary of ranks: `1024 ranks on 128 hosts, steps 20 to 21, oldest heartbeat 1.0 s (rank 77)`.
fn summary(ranks: &[RankStatus]) -> Option<String> {
    let hosts: BTreeSet<&str> = ranks.iter().map(|rank| rank.host.as_str()).collect();
    let (first, last) = (ranks.iter().map(|rank| rank.step).min()?, ranks.iter().map(|rank| rank.step).max()?);
    let steps = if first == last { format!("step {first}") } else { format!("steps {first} to {last}") };
    let oldest = ranks.iter().max_by(|a, b| a.seconds_since_heartbeat.total_cmp(&b.seconds_since_heartbeat))?;
    let (count, hosts) = (counted(ranks.len() as u64, "rank"), counted(hosts.len() as u64, "host"));
    let (age, rank) = (oldest.seconds_since_heartbeat, oldest.rank);
    Some(format!("{count} on {hosts}, {steps}, oldest heartbeat {age:.1} s (rank {rank})"))
}

fn rank(rank: &RankStatus) -> String {
    let (number, pid, host, step, silent) = (rank.rank, rank.pid, &rank.host, rank.step, rank.seconds_since_heartbeat);
    let phase = &rank.phase;
    let xids = rank.gpu.as_ref().and_then(GpuStatus::xid_report).map_or(String::new(), |report| format!("; {report}"));
    let text = format!("pid {pid}, host {host}, step {step}, {phase}, last heartbeat {silent:.1} s ago{xids}");
    line(&format!("rank {number}"), &text)
}

#[cfg(test)]
mod tests {
    use lambert_control::StepRecord;

    use super::*;
    use crate::status::LatestMetrics;

    fn of(state: &str) -> Job {
        Job { id: "12".into(), state: state.into(), partition: Some("batch".into()), ..Job::default() }
    }

    #[test]
    fn the_state_of_a_job_comes_from_slurm() {
        let reason = Some("Priority".to_owned());
        let pending = Job { reason, start: Some("2026-11-23T03:46:12".into()), requeues: 2, ..of("PENDING") };
        assert_eq!(
            job(&pending),
            "job          12: pending (Priority), expected to start 2026-11-23T03:46:12 (partition batch), requeued 2 times"
        );
        let running = Job { nodes: Some("n[1-2]".into()), seconds_left: Some(598), ..of("RUNNING") };
        assert_eq!(job(&running), "job          12: running on n[1-2] (partition batch), 9 min 58 s left");
        assert_eq!(job(&of("PENDING")), "job          12: pending, start time unknown (partition batch)");
    }

    #[test]
    fn slurm_takes_precedence_over_an_old_status() {
        let status = Status { state: RunState::Training, updated: now() - 180.0, ..Status::default() };
        let head = |liveness, job: Option<&Job>| run("/r", &status, liveness, job)[0].clone();
        assert!(head(Liveness::Unknown, None).contains("may be gone"));
        assert_eq!(
            head(Liveness::Unknown, Some(&of("PENDING"))),
            "run          /r (): training 3 min ago, queued again"
        );
        assert!(head(Liveness::Unknown, Some(&of("SUSPENDED"))).contains("suspended with its job"));
        let over = Status { state: RunState::Finished, ..status.clone() };
        assert_eq!(run("/r", &over, Liveness::Over, None)[0], "run          /r (): finished 3 min ago");
    }

    #[test]
    fn the_end_of_a_job_has_its_step_and_cause() {
        let cause = "preempted by another job".to_owned();
        let end = JobEnd { job: "12".into(), step: Some(7), cause, ..JobEnd::default() };
        assert_eq!(job_end(&end, 60.0), "job end      12 at step 7, 1 min ago: preempted by another job");
        let end = JobEnd { excluded: vec!["n3".into(), "n1".into()], ..end };
        assert!(job_end(&end, 60.0).ends_with(" another job; the next start excludes n3, n1"));
    }

    #[test]
    fn times_and_failures_have_a_line() {
        let times = RankTimes { min: 0.0821, median: 0.0937, max: 0.094, slowest: 1 };
        assert_eq!(rank_times(times, &[]), "median 94 ms/step, range 82-94 ms; slowest: rank 1 (host ?)");
        let cause = "rank 1 (pid 7, host vm) killed by SIGKILL".to_owned();
        let failures = vec![Downtime { attempt: 1, step: 603, seconds: Some(2.61), cause }];
        let status = Status { attempt: 2, restarts: Restarts { count: 1, failures }, ..Status::default() };
        let lines = run("/r", &status, Liveness::Over, None);
        assert_eq!(lines[2], "attempt      2 (1 restart, 2.6 s lost)");
        assert_eq!(lines[3], "failure      attempt 1, step 603: rank 1 (pid 7, host vm) killed by SIGKILL; 2.6 s lost");
        let unknown = Downtime { attempt: 1, step: 603, seconds: None, cause: "killed".to_owned() };
        assert!(failure(&unknown, &status).ends_with("; not recovered yet"));
        let progress = RunProgress { step: 603, ..RunProgress::default() };
        assert!(failure(&unknown, &Status { progress, ..status }).ends_with("; recovered, time lost unknown"));
    }

    #[test]
    fn failed_saves_have_a_line() {
        let failed = FailedSaves { since: now() - 725.0, count: 3, error: "cannot write x: disk full".to_owned() };
        let status = Status { failed_saves: Some(failed), state: RunState::Training, ..Status::default() };
        let lines = run("/r", &status, Liveness::Alive, None);
        let expected = "saves        failing for 12 min (3 failures), last: cannot write x: disk full";
        assert!(lines.contains(&expected.to_owned()), "{lines:?}");
        assert!(
            one_line(&status).ends_with("; saves failing for 12 min (3 failures), last: cannot write x: disk full")
        );
        let saved = Status { failed_saves: None, ..status };
        assert!(!run("/r", &saved, Liveness::Alive, None).iter().any(|line| line.starts_with("saves")));
    }

    #[test]
    fn a_rate_is_shown_after_the_first_step_of_an_attempt() {
        let of_rate = |samples_per_second| {
            let progress = RunProgress { step: 7, steps: 10, samples_per_second, seconds_left: None };
            step(&Status { progress, state: RunState::Training, ..Status::default() })
        };
        assert_eq!([0.0, 64.0].map(of_rate), ["7/10 (70%)", "7/10 (70%), 64 samples/s"]);
    }

    #[test]
    fn the_largest_step_has_a_percentage() {
        let progress = RunProgress { step: u64::MAX, steps: u64::MAX, ..RunProgress::default() };
        assert!(step(&Status { progress, ..Status::default() }).ends_with(" (100%)"));
    }

    #[test]
    fn many_ranks_have_a_summary_and_lines_of_those_that_need_attention() {
        let one = |number: usize| RankStatus {
            rank: number,
            host: format!("n{}", number / 8),
            pid: 7,
            step: 20 + number as u64 % 2,
            phase: "computing a step".to_owned(),
            seconds_since_heartbeat: if number == 77 { 1.0 } else { 0.5 },
            gpu: None,
        };
        let mut many: Vec<RankStatus> = (0..1024).map(one).collect();
        assert_eq!(ranks(&many[..32], None).len(), 32);
        let summary = "ranks        1024 ranks on 128 hosts, steps 20 to 21, oldest heartbeat 1.0 s (rank 77)";
        assert_eq!(ranks(&many, None), [summary]);
        many[900].seconds_since_heartbeat = 45.0;
        many[7].gpu = Some(GpuStatus { xids: vec![79], ..GpuStatus::default() });
        let lines = ranks(&many, None);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].starts_with("rank 7 ") && lines[2].contains("last heartbeat 45.0 s ago"), "{lines:?}");
        many[..100].iter_mut().for_each(|rank| rank.step = 3);
        let lines = ranks(&many, None);
        assert_eq!(lines.len(), 18, "{lines:?}");
        assert!(lines[17].ends_with("85 more are slow, silent or have GPU errors (`--json` lists all)"), "{lines:?}");
    }

    #[test]
    fn the_peak_memory_has_a_line() {
        let lines = |peak_memory| {
            let record = Some(StepRecord { peak_memory, ..StepRecord::default() });
            let latest = LatestMetrics { record, ..LatestMetrics::default() };
            run("/r", &Status { latest, ..Status::default() }, Liveness::Over, None)
        };
        assert_eq!(lines(Some(3 << 30))[3], "memory       peak 3.00 GiB per rank");
        assert!(!lines(None).iter().any(|line| line.starts_with("memory")));
    }

    #[test]
    fn goodput_names_what_took_the_most_time() {
        let mut account = Goodput { started: 1.0, ..Goodput::default() };
        account.add(TimeCategory::ProductiveStep, 90.0);
        account.add(TimeCategory::Evaluation, 2.0);
        account.add(TimeCategory::Initialization, 8.0);
        account.add(TimeCategory::Other, 0.1);
        assert_eq!(goodput(&account), "89.9% of 1 min 40 s; initialization 8 s, evaluation 2 s");
    }

    #[test]
    fn the_newest_checkpoints_have_one_line() {
        let names = ["step-7", "step-6", "step-5", "step-4", "step-3", "step-2", "step-1"].map(str::to_owned);
        assert_eq!(checkpoints(&names[5..]), "checkpoints  step-2 (latest), step-1");
        assert!(checkpoints(&names).ends_with("step-3, 2 more"));
        assert_eq!(checkpoints(&[]), "checkpoints  none");
    }
}
