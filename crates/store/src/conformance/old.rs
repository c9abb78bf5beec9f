//! A database as it was before dependencies, counts and dead letters: what comes of it.

use super::*;
use crate::{
    DeadLetterFilter,
    record::{JobColumns, encode_compact},
};
use hodei_core::{dead_letter::DeadLetter, state::FailureKind};
use serde::Serialize;

/// A row of the table of jobs.
pub(crate) struct OldRow {
    pub job: Job,
    pub record: Vec<u8>,
}

impl OldRow {
    pub fn columns(&self) -> JobColumns<'_> {
        JobColumns::of(&self.job)
    }
}

#[derive(Serialize)]
enum OldOutcome {
    Failed((FailureKind, String, Option<i32>, Option<i32>)),
}

/// The fields that a record had, in their order.
fn old_record(job: &Job) -> Vec<u8> {
    let outcome = |outcome: &Outcome| match outcome {
        Outcome::Failed(failure) => {
            OldOutcome::Failed((failure.kind, failure.message.clone(), failure.exit_code, failure.signal))
        }
        other => panic!("{other:?} is not used here"),
    };
    let execution = |run: &Execution| {
        let times = (run.assigned_at, run.started_at, run.finished_at);
        let outcome = run.outcome.as_ref().map(outcome);
        let progress = run.progress.clone();
        (run.id, run.worker, run.attempt, times.0, times.1, times.2, outcome, progress, run.log_entries)
    };
    let timeouts = (job.timeouts.queue, job.timeouts.run, job.timeouts.kill_grace);
    let executions: Vec<_> = job.executions.iter().map(execution).collect();
    let numbers = (job.seq, job.attempt, job.losses);
    let mut record = Vec::new();
    let fields = (
        job.id,
        &job.name,
        &job.queue,
        job.priority,
        (job.requirements.cpu_millis, job.requirements.memory_bytes),
        &job.retry,
        timeouts,
        &job.state,
        numbers.0,
        numbers.1,
        numbers.2,
        job.created_at,
        executions,
        &job.task_type,
    );
    encode_compact(&fields, &mut record).expect("a record");
    record
}

fn old_jobs() -> Vec<Job> {
    let in_queue = |queue: &str, n, state| Job { queue: queue.into(), state, ..pending(n) };
    let waits = State::Pending { since: Time(1_000) };
    let good = State::Succeeded { at: Time(2_000) };
    let mut failed = in_queue("b", 6, State::Failed { at: Time(3_000) });
    failed.executions = vec![Execution {
        id: execution_id(6),
        worker: WorkerId(Uuid::from_u128(5)),
        attempt: 1,
        assigned_at: Time(3),
        started_at: Some(Time(4)),
        finished_at: Some(Time(5)),
        outcome: Some(Outcome::Failed(Failure::exit(3))),
        progress: None,
        log_entries: 7,
    }];
    vec![
        in_queue("a", 1, waits.clone()),
        in_queue("a", 2, waits.clone()),
        in_queue("a", 3, waits),
        in_queue("b", 4, good.clone()),
        in_queue("b", 5, good),
        failed,
        in_queue("b", 7, State::TimedOut { at: Time(4_000) }),
    ]
}

pub(crate) fn old_rows() -> Vec<OldRow> {
    old_jobs().into_iter().map(|job| OldRow { record: old_record(&job), job }).collect()
}

/// A job that went to a worker, and whose row does not say so yet.
pub(crate) fn old_placements() -> Vec<u8> {
    let mut record = Vec::new();
    let placements = vec![(job_id(2), run(9), Time(1_500))];
    encode_compact(&placements, &mut record).expect("a record");
    record
}

pub(crate) async fn check_old_database(store: &Arc<dyn Store>) {
    let jobs = old_jobs();
    let found = store.jobs(jobs.iter().map(|job| job.id).collect()).await.expect("jobs");
    assert_eq!(by_id(found), by_id(jobs.clone()));
    let expected = [
        ("a", StateKind::Pending, 2),
        ("a", StateKind::Scheduled, 1),
        ("b", StateKind::Succeeded, 2),
        ("b", StateKind::Failed, 1),
        ("b", StateKind::TimedOut, 1),
    ];
    assert_eq!(store.counts().await.expect("counts"), expected.map(|(queue, state, n)| (queue.into(), state, n)));
    let filter = Filter { queue: Some("b".into()), ..Filter::default() };
    assert_eq!(listed(store, &filter, || 2).await, [&jobs[6], &jobs[5], &jobs[4], &jobs[3]].map(Clone::clone));
    let letters = store.dead_letters(DeadLetterFilter::default(), None, 9).await.expect("letters").letters;
    let expected: Vec<DeadLetter> = [6, 5].into_iter().filter_map(|i| DeadLetter::of(&jobs[i])).collect();
    assert_eq!((letters, expected.len()), (expected, 2));
    assert_eq!(store.error_groups(9).await.expect("groups").0, 2);
    // It goes on like any other.
    let mut leader = Leader::of(store).await;
    leader.commit(Batch { forgotten: vec![job_id(6)], ..jobs_batch([new(pending(8))]) }, vec![]).await;
    assert_eq!(store.error_groups(9).await.expect("groups").0, 1);
}
