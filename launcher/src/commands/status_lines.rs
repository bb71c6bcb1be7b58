//! Text output of `lambert status`. Pure formatting.

use lambert_control::RankTimes;
use lambert_control::Score;
use lambert_store::checkpoint::ListedCheckpoint;

use crate::decide::history::JobEnd;
use crate::host::now;
use crate::observe::display::duration;
use crate::slurm::job::Job;
use crate::status::stored::Liveness;
use crate::status::{RankStatus, RunState, Status};

/// Formats a run's status; `job` is its state in Slurm, if known.
pub fn run(url: &str, status: &Status, liveness: Liveness, job: Option<&Job>) -> Vec<String> {
    let mut lines = vec![format!("{url} ({}): {}", status.name, state(status, liveness, job))];
    let (progress, latest, workers) = (&status.progress, &status.latest, &status.workers);
    let share = 100.0 * progress.step as f64 / progress.steps.max(1) as f64;
    let mut step = format!("step         {} of {} ({share:.1} %)", progress.step, progress.steps);
    if status.state == RunState::Training {
        let left = progress.seconds_left.map_or(String::new(), |left| format!(", {} left", duration(left)));
        step += &format!(", {:.1} samples/s{left}", progress.samples_per_second);
    }
    lines.push(step);
    if let Some(record) = &latest.record {
        let (loss, rate) = (record.loss, record.update.learning_rate);
        lines.push(format!("loss         {loss:.4} ({}), learning rate {rate:.3e}", score(&record.scores.main())));
    }
    let times = latest.record.as_ref().and_then(|record| record.times.ranks);
    if let Some(times) = times.filter(|_| workers.ranks.len() > 1) {
        lines.push(rank_times(times, &workers.ranks));
    }
    if let Some(held_out) = &latest.evaluation {
        lines.push(format!("held out     {}, after step {}", score(&held_out.scores.main()), held_out.step));
    }
    if let Some((noise, samples)) = latest.noise.and_then(|noise| Some((noise, noise.samples()?))) {
        lines.push(format!("noise scale  about {samples:.0} samples, from {} estimates", noise.estimates));
    }
    lines.push(format!("attempt      {}, {} restart(s)", status.attempt, status.restarts.count));
    lines.extend(status.restarts.failures.iter().map(|lost| {
        let cost = lost.seconds.map_or("not made up for yet".to_owned(), |seconds| format!("cost {seconds:.1} s"));
        format!("lost         at step {} of attempt {}: {} ({cost})", lost.step, lost.attempt, lost.cause)
    }));
    lines.extend(workers.logs.iter().map(|folder| format!("logs         {folder}, on each rank's host")));
    if status.state == RunState::Failed
        && let Some(error) = &status.error
    {
        lines.push(format!("failed       {error}"));
    }
    if !status.state.is_over() && !is_waiting(job) {
        lines.extend(workers.ranks.iter().map(rank));
    }
    lines
}

/// True if the run's job is pending or suspended, whatever its coordinator wrote last.
fn is_waiting(job: Option<&Job>) -> bool {
    job.is_some_and(|job| job.is_pending() || job.is_suspended())
}

/// `mlm 6.8125, acc 5.0%`.
fn score(Score { name, loss, accuracy }: &Score) -> String {
    let accuracy = accuracy.map_or(String::new(), |accuracy| format!(", accuracy {accuracy:.4}"));
    format!("{name} {loss:.4}{accuracy}")
}

fn state(status: &Status, liveness: Liveness, job: Option<&Job>) -> String {
    let age = duration(now() - status.updated);
    let who = format!("pid {} on host {}", status.coordinator.pid, status.coordinator.host);
    let state = status.state;
    match (liveness, job) {
        (_, Some(job)) if job.is_pending() => format!("{state} {age} ago, and queued again"),
        (_, Some(job)) if job.is_suspended() => format!("{state}, and suspended with its job {age} ago"),
        (Liveness::Alive, _) => format!("{state}, its coordinator ({who}) wrote this {age} ago"),
        (Liveness::Over, _) => format!("{state} {age} ago"),
        (Liveness::Gone, _) => {
            format!("{state}, but its coordinator ({who}) is gone; this was written {age} ago. `lambert run` goes on")
        }
        (Liveness::Unknown, _) => format!("{state}, but its coordinator ({who}) wrote last {age} ago: it may be gone"),
    }
}

/// Formats a Slurm job.
pub fn job(job: &Job) -> String {
    let mut text = format!("job          {}: {}", job.id, job.state.to_lowercase());
    if let Some(reason) = &job.reason {
        text += &format!(" ({reason})");
    }
    let partition = job.partition.as_ref().map_or(String::new(), |partition| format!(" (partition {partition})"));
    match (&job.nodes, &job.start) {
        (Some(nodes), _) => text += &format!(" on {nodes}{partition}"),
        (None, Some(start)) if job.is_pending() => text += &format!(", expected to start {start}{partition}"),
        (None, None) if job.is_pending() => text += &format!(", start not known yet{partition}"),
        (None, _) => text += &partition,
    }
    if let Some(left) = job.seconds_left.filter(|_| job.is_alive() && !job.is_pending()) {
        text += &format!(", {} left", duration(left as f64));
    }
    if job.requeues > 0 {
        text += &format!(", requeued {} time(s)", job.requeues);
    }
    text
}

/// Formats the end of a coordinator's job.
pub fn job_end(end: &JobEnd, now: f64) -> String {
    let step = end.step.map_or(String::new(), |step| format!(" at step {step}"));
    format!("ended        job {}{step}, {} ago: {}", end.job, duration(now - end.unix), end.cause)
}

/// Formats the list of checkpoints, newest first.
pub fn checkpoints(checkpoints: &[ListedCheckpoint]) -> Vec<String> {
    match checkpoints {
        [] => vec!["checkpoints  none".to_owned()],
        _ => checkpoints.iter().map(|listed| format!("checkpoint   {}", listed.name)).collect(),
    }
}

/// Formats the spread of step times over the ranks and the slowest rank.
fn rank_times(times: RankTimes, ranks: &[RankStatus]) -> String {
    let RankTimes { min, median, max, slowest } = times;
    let host = ranks.iter().find(|rank| rank.rank == slowest).map_or("?", |rank| rank.host.as_str());
    format!(
        "ranks        {min:.3} to {max:.3} s a step, median {median:.3}; the slowest is rank {slowest} on host {host}"
    )
}

fn rank(rank: &RankStatus) -> String {
    let (number, pid, host, step, silent) = (rank.rank, rank.pid, &rank.host, rank.step, rank.seconds_since_heartbeat);
    let phase = &rank.phase;
    format!("rank {number:<7} pid {pid} on host {host}, step {step}, {phase}, last heartbeat {silent:.1} s ago")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(state: &str) -> Job {
        Job { id: "12".into(), state: state.into(), partition: Some("batch".into()), ..Job::default() }
    }

    #[test]
    fn the_state_of_a_job_comes_from_slurm() {
        let reason = Some("Priority".to_owned());
        let pending = Job { reason, start: Some("2026-11-23T03:46:12".into()), requeues: 2, ..of("PENDING") };
        assert_eq!(
            job(&pending),
            "job          12: pending (Priority), expected to start 2026-11-23T03:46:12 (partition batch), requeued 2 time(s)"
        );
        let running = Job { nodes: Some("n[1-2]".into()), seconds_left: Some(598), ..of("RUNNING") };
        assert_eq!(job(&running), "job          12: running on n[1-2] (partition batch), 9 min 58 s left");
        assert_eq!(job(&of("PENDING")), "job          12: pending, start not known yet (partition batch)");
    }

    #[test]
    fn slurm_takes_precedence_over_an_old_status() {
        let status = Status { state: RunState::Training, updated: now() - 180.0, ..Status::default() };
        let head = |liveness, job: Option<&Job>| run("/r", &status, liveness, job)[0].clone();
        assert!(head(Liveness::Unknown, None).contains("it may be gone"));
        assert_eq!(head(Liveness::Unknown, Some(&of("PENDING"))), "/r (): training 3 min 00 s ago, and queued again");
        assert!(head(Liveness::Unknown, Some(&of("SUSPENDED"))).contains("suspended with its job"));
        let over = Status { state: RunState::Finished, ..status.clone() };
        assert_eq!(run("/r", &over, Liveness::Over, None)[0], "/r (): finished 3 min 00 s ago");
    }

    #[test]
    fn the_end_of_a_job_has_its_step_and_cause() {
        let end = JobEnd { unix: 0.0, job: "12".into(), step: Some(7), cause: "preempted by another job".into() };
        assert_eq!(job_end(&end, 60.0), "ended        job 12 at step 7, 1 min 00 s ago: preempted by another job");
    }
}
