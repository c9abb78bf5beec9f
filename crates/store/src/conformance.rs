//! What every store must do. Each check gets an empty store of its own; the random ones use fixed seeds.

use crate::{Aside, Commit, Filter, LogPosition, LogSpan, PlacedBatch, Store, StoreError};
use hodei_core::{
    brain::{Batch, BatchId, Edge, JobWrite, Placement, Settling},
    id::{ExecutionId, Incarnation, JobId, WorkerId, made},
    job::{ClassId, Execution, Job, Progress},
    protocol::LogChunk,
    requirements::Requirements,
    spec::{JobSpec, Priority, Secret, Work},
    state::{Cancel, DelayReason, Failure, Outcome, Run, State, StateKind},
    time::{Millis, Time},
    token::{Hash, WorkerToken},
    worker::{Capacity, Phase, WorkerInfo, WorkerRecord},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};
use uuid::Uuid;

mod old;
mod tasks;

pub(crate) use old::*;
pub use tasks::*;

/// Hands the names of all checks to another macro.
macro_rules! for_each_check {
    ($then:ident) => {
        $then! {
            every_kind_of_row_comes_back
            an_empty_store_answers
            leadership_is_handed_on
            a_deposed_leader_writes_nothing
            a_repeated_commit_changes_nothing
            a_commit_of_logs_alone_counts
            odd_rows_do_not_fail_the_others
            many_new_jobs_are_kept_like_few
            columns_follow_updates
            placements_are_kept_until_they_are_settled
            lanes_are_those_where_jobs_wait
            ready_pages_give_every_job_once
            due_pages_give_every_job_once
            list_pages_give_every_job_once
            workers_and_tokens_come_and_go
            log_positions_and_tail
            log_repeats_are_ignored
            log_pages_give_every_chunk_once
            much_log_in_one_commit
            readers_see_whole_commits
            large_commits
            links_come_and_go
            queues_and_schedules_come_and_go
            the_fleet_comes_and_goes
            data_and_input_replace_only_themselves
            counts_are_kept_by_differences
            dead_letters_are_counted_by_group
            dead_letter_pages_give_every_match_once
            deliveries_are_found_when_they_are_due
            the_journal_is_in_order_over_epochs
            api_tokens_and_audit_lines_come_back
            forgotten_jobs_leave_nothing
            every_filter_gives_what_it_says
            listings_look_at_a_bounded_number_of_rows
            expired_jobs_are_old_and_over
            jobs_are_awaited_while_unfinished_ones_depend_on_them
            repeats_and_former_leaders_add_nothing
        }
    };
}

pub(crate) use for_each_check;

pub async fn every_kind_of_row_comes_back(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let jobs: Vec<Job> = all_states().into_iter().enumerate().map(|(i, state)| full_job(i as u64, state)).collect();
    let writes = jobs.iter().map(|job| JobWrite {
        job: job.clone().into(),
        payload: Some(payload(3000)),
        result: (job.seq % 2 == 0).then(|| Arc::from(vec![7; job.seq as usize])),
        data: None,
        input: None,
    });
    let batch = Batch {
        jobs: writes.collect(),
        workers: vec![worker(1, Phase::Active), worker(2, Phase::Draining)],
        tokens: vec![token(1), token(2)],
        ..Batch::default()
    };
    leader.commit(batch, vec![chunk(0, 1, 0, 2)]).await;

    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    assert_eq!(by_id(store.jobs(ids.clone()).await.expect("jobs")), by_id(jobs.clone()));
    let payloads = store.payloads(ids.clone()).await.expect("payloads");
    assert_eq!(payloads.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>(), ids.into_iter().collect());
    assert!(payloads.iter().all(|(_, bytes)| bytes[..] == payload(3000)[..]));
    for job in &jobs {
        let expected = (job.seq % 2 == 0).then(|| vec![7; job.seq as usize]);
        let found = store.results(vec![job.id]).await.expect("results");
        assert_eq!(found.into_iter().next().map(|(_, result)| result), expected);
    }
    let mut workers = store.workers().await.expect("workers");
    workers.sort_by_key(|worker| worker.id);
    assert_eq!(workers, [worker(1, Phase::Active), worker(2, Phase::Draining)]);
    let mut tokens = store.tokens().await.expect("tokens");
    tokens.sort_by_key(|token| token.hash);
    assert_eq!(tokens, [token(1), token(2)]);
    let active: BTreeSet<_> = store.active().await.expect("active").iter().map(|job| job.state.kind()).collect();
    assert_eq!(active, BTreeSet::from([StateKind::Scheduled, StateKind::Running]));
    assert_eq!(store.logs(job_id(0), LogPosition::START, 1).await.expect("logs"), [chunk(0, 1, 0, 2)]);
}

pub async fn an_empty_store_answers(store: Arc<dyn Store>) {
    let lane = (ClassId(1), Priority::Normal);
    assert!(store.active().await.expect("active").is_empty());
    assert!(store.workers().await.expect("workers").is_empty());
    assert!(store.tokens().await.expect("tokens").is_empty());
    assert!(store.lanes().await.expect("lanes").is_empty());
    assert!(store.ready(lane.0, lane.1, None, 10, 0).await.expect("ready").is_empty());
    assert!(store.due(None, 10).await.expect("due").is_empty());
    assert!(store.jobs(vec![]).await.expect("jobs").is_empty());
    assert!(store.jobs(vec![job_id(1)]).await.expect("jobs").is_empty());
    assert!(store.payloads(vec![job_id(1)]).await.expect("payloads").is_empty());
    assert!(store.results(vec![job_id(1)]).await.expect("results").is_empty());
    assert!(store.list(Filter::default(), None, 10).await.expect("list").jobs.is_empty());
    assert!(store.logs(job_id(1), LogPosition::START, 10).await.expect("logs").is_empty());
    assert!(store.log_tail(job_id(1), 10).await.expect("tail").is_empty());
    assert!(store.data(vec![job_id(1)]).await.expect("data").is_empty());
    assert!(store.dependents(vec![Settling { job: job_id(1), told: None }], 10).await.expect("dependents").is_empty());
    assert!(store.awaited(vec![job_id(1)]).await.expect("awaited").is_empty());
    assert!(store.settling().await.expect("settling").is_empty());
    assert!(store.keys(vec!["key".into()]).await.expect("keys").is_empty());
    assert!(store.counts().await.expect("counts").is_empty());
    assert_eq!(store.error_groups(10).await.expect("groups"), (0, vec![]));
    let letters = store.dead_letters(Default::default(), None, 10).await.expect("letters");
    assert!(letters.letters.is_empty() && letters.next.is_none());
    let expired = store.expired(StateKind::Failed, Time(i64::MAX), None, 10).await.expect("expired");
    assert_eq!(expired, (vec![], None));
    assert!(store.audit(Default::default(), None, 10).await.expect("audit").is_empty());
    assert!(store.log_entries(vec![(job_id(1), execution_id(1))]).await.expect("entries").is_empty());
}

pub async fn leadership_is_handed_on(store: Arc<dyn Store>) {
    let first = store.lead().await.expect("lead");
    assert_eq!((first.last, first.parked_until), (Time(0), None));
    let mut leader = Leader { store: Arc::clone(&store), epoch: first.epoch, number: 0 };
    leader.commit(Batch { now: Time(500), parked_until: Some(Time(900)), ..Batch::default() }, vec![]).await;
    leader.commit(Batch { now: Time(400), ..Batch::default() }, vec![]).await;
    let second = store.lead().await.expect("lead");
    assert!(second.epoch > first.epoch);
    assert_eq!(second.last, Time(500), "time never runs backwards");
    assert_eq!(second.parked_until, Some(Time(900)));
    let mut leader = Leader { store: Arc::clone(&store), epoch: second.epoch, number: 0 };
    leader.commit(Batch { now: Time(600), jobs: vec![new(pending(1))], ..Batch::default() }, vec![]).await;
    assert_eq!(store.jobs(vec![job_id(1)]).await.expect("jobs").len(), 1, "batch numbers begin anew with an epoch");
}

pub async fn a_deposed_leader_writes_nothing(store: Arc<dyn Store>) {
    let mut old = Leader::of(&store).await;
    old.commit(jobs_batch([new(pending(1))]), vec![]).await;
    let mut leader = Leader::of(&store).await;
    let batch = Batch {
        jobs: vec![new(pending(2)), known(Job { attempt: 9, ..pending(1) })],
        workers: vec![worker(1, Phase::Active)],
        tokens: vec![token(1)],
        ..Batch::default()
    };
    let refused = old.try_commit(batch, vec![chunk(1, 1, 0, 1)]).await;
    assert!(
        matches!(refused, Err(StoreError::Deposed { ours, current }) if ours == old.epoch && current == leader.epoch)
    );
    assert_eq!(store.jobs(vec![job_id(1), job_id(2)]).await.expect("jobs"), [pending(1)]);
    assert!(store.workers().await.expect("workers").is_empty());
    assert!(store.tokens().await.expect("tokens").is_empty());
    assert!(store.log_tail(job_id(1), 9).await.expect("logs").is_empty());
    let refused = old.try_commit(many_new(), vec![]).await;
    assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    assert_eq!(store.list(Filter::default(), None, 9).await.expect("list").jobs, [pending(1)]);
    leader.commit(jobs_batch([new(pending(2))]), vec![]).await;
    assert_eq!(store.jobs(vec![job_id(1), job_id(2)]).await.expect("jobs").len(), 2);
}

/// So many that a store may write them in another way than a few.
fn many_new() -> Batch {
    jobs_batch((100..1_100).map(|n| new(pending(n))))
}

pub async fn a_repeated_commit_changes_nothing(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    leader.commit(jobs_batch([new(pending(1))]), vec![chunk(1, 1, 0, 5)]).await;
    leader.commit(jobs_batch([known(Job { attempt: 1, ..pending(1) })]), vec![]).await;
    for number in [1, 2] {
        let mut again = Leader { number: number - 1, ..leader.clone() };
        again
            .commit(jobs_batch([new(pending(2)), known(Job { attempt: 7, ..pending(1) })]), vec![chunk(1, 1, 5, 5)])
            .await;
        let mut again = Leader { number: number - 1, ..leader.clone() };
        again.commit(many_new(), vec![]).await;
    }
    let listed = store.list(Filter::default(), None, 9).await.expect("list").jobs;
    assert_eq!(listed, [Job { attempt: 1, ..pending(1) }]);
    let entries = store.log_entries(vec![(job_id(1), execution_id(1))]).await.expect("entries");
    assert_eq!(entries, [(execution_id(1), 5)]);
}

pub async fn a_commit_of_logs_alone_counts(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    leader.commit(Batch::default(), vec![chunk(1, 1, 0, 5)]).await;
    let mut again = Leader { number: 0, ..leader.clone() };
    again.commit(jobs_batch([new(pending(1))]), vec![]).await;
    assert!(store.jobs(vec![job_id(1)]).await.expect("jobs").is_empty(), "its number was taken");
}

pub async fn odd_rows_do_not_fail_the_others(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    leader.commit(jobs_batch([new(pending(1))]), vec![]).await;
    let twice = new(Job { attempt: 5, ..pending(1) });
    leader.commit(jobs_batch([known(pending(8)), twice, new(pending(2))]), vec![]).await;
    let found = store.jobs(vec![job_id(1), job_id(2), job_id(8)]).await.expect("jobs");
    assert_eq!(by_id(found), by_id(vec![pending(1), pending(2)]));
}

/// So many that a store may write them in another way than a few.
pub async fn many_new_jobs_are_kept_like_few(store: Arc<dyn Store>) {
    let timed = |n: u64| Job { timeouts: queue_timeout(60), ..pending(n) };
    let job = |n: u64| if n.is_multiple_of(2) { pending(n) } else { timed(n) };
    let ids = || (0..3_000).map(job_id).collect::<Vec<_>>();
    let mut leader = Leader::of(&store).await;
    let edges = |from: u64, to: u64| (from..to).map(|n| Edge { dependency: job_id(9_999), dependent: job_id(n) });
    let first = jobs_batch((0..2_000).map(|n| new(job(n))));
    leader.commit(Batch { edges: edges(0, 2_000).collect(), ..first }, vec![]).await;
    // One of them is there already, which costs the others nothing.
    let odd = Job { attempt: 5, ..job(7) };
    let second = jobs_batch((2_000..3_000).map(|n| new(job(n))).chain([new(odd)]));
    leader.commit(Batch { edges: edges(1_999, 3_000).collect(), ..second }, vec![]).await;
    let ended = Settling { job: job_id(9_999), told: None };
    assert_eq!(store.dependents(vec![ended], 9_999).await.expect("dependents").len(), 3_000);
    assert_eq!(by_id(store.jobs(ids()).await.expect("jobs")), by_id((0..3_000).map(job).collect()));
    let payloads = store.payloads(ids()).await.expect("payloads");
    assert!(payloads.len() == 3_000 && payloads.iter().all(|(_, found)| **found == *payload(60)));
    let waiting = store.ready(job(0).class(), job(0).priority, None, 3_000, leader.number).await.expect("ready");
    assert_eq!(waiting, (0..3_000).map(job).collect::<Vec<_>>());
    assert_eq!(store.due(None, 3_000).await.expect("due").len(), 1_500);
    let of_queue = Filter { queue: Some(job(0).queue.to_string()), ..Filter::default() };
    assert_eq!(listed(&store, &of_queue, || 1_000).await.len(), 3_000);
}

pub async fn columns_follow_updates(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let job = Job { timeouts: queue_timeout(60), ..pending(1) };
    leader.commit(jobs_batch([new(job.clone())]), vec![]).await;
    for state in all_states() {
        let job = Job { state: state.clone(), ..job.clone() };
        leader.commit(jobs_batch([known(job.clone())]), vec![]).await;
        let kind = state.kind();
        let present = |found: Vec<Job>| found == [job.clone()];
        let waits = kind == StateKind::Pending;
        // First, because no other read has made a store catch up with what it has answered.
        let ready = store.ready(job.class(), job.priority, None, 9, leader.number).await.expect("ready");
        assert_eq!(present(ready), waits, "{kind:?}");
        assert_eq!(present(store.active().await.expect("active")), kind.is_active(), "{kind:?}");
        assert_eq!(store.lanes().await.expect("lanes") == [(job.class(), job.priority)], waits, "{kind:?}");
        let timed = matches!(kind, StateKind::Pending | StateKind::Delayed);
        assert_eq!(present(store.due(None, 9).await.expect("due")), timed, "{kind:?}");
        for other in StateKind::ALL {
            let filter = Filter { states: vec![other], ..Filter::default() };
            assert_eq!(
                present(store.list(filter, None, 9).await.expect("list").jobs),
                kind == other,
                "{kind:?} {other:?}"
            );
        }
    }
    let moved = Job { seq: 77, ..job };
    leader.commit(jobs_batch([known(moved.clone())]), vec![]).await;
    assert_eq!(store.lanes().await.expect("lanes"), [(moved.class(), moved.priority)]);
    let after = |seq| store.ready(moved.class(), moved.priority, Some(seq), 9, leader.number);
    assert_eq!(after(76).await.expect("ready"), vec![moved.clone()]);
    assert!(after(77).await.expect("ready").is_empty());
}

pub async fn placements_are_kept_until_they_are_settled(store: Arc<dyn Store>) {
    let placement = |n: u64| Placement { job: job_id(n), run: Some(run(n)), at: Time(500), released_to: None };
    let mut leader = Leader::of(&store).await;
    leader.commit(Batch { placements: vec![placement(1), placement(2)], ..Batch::default() }, vec![]).await;
    leader.commit(Batch { placements: vec![placement(3)], ..Batch::default() }, vec![]).await;
    let mut again = Leader { number: 1, ..leader.clone() };
    again.commit(Batch { placements: vec![placement(9)], ..Batch::default() }, vec![]).await;
    let id = |number| BatchId { epoch: leader.epoch, number };
    let first = PlacedBatch { id: id(1), placements: vec![placement(1), placement(2)] };
    let second = PlacedBatch { id: id(2), placements: vec![placement(3)] };
    assert_eq!(store.placements().await.expect("placements"), [first, second.clone()]);
    let settles = Batch { settled: vec![id(1)], ..Batch::default() };
    leader.commit(settles, vec![]).await;
    // They outlive their leader, whose numbers the next one uses again.
    let mut next = Leader::of(&store).await;
    next.commit(Batch::default(), vec![chunk(1, 1, 0, 1)]).await;
    next.commit(Batch { placements: vec![placement(4)], ..Batch::default() }, vec![]).await;
    let third = PlacedBatch { id: BatchId { epoch: next.epoch, number: 2 }, placements: vec![placement(4)] };
    assert_eq!(store.placements().await.expect("placements"), [second.clone(), third.clone()]);
    next.commit(Batch { settled: vec![second.id, third.id], ..Batch::default() }, vec![]).await;
    assert_eq!(store.placements().await.expect("placements"), []);
}

pub async fn lanes_are_those_where_jobs_wait(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let jobs = random_jobs(&mut Random(1), 300);
    leader.commit(jobs_batch(jobs.iter().cloned().map(new)), vec![]).await;
    let expected: BTreeSet<_> = jobs.iter().filter(|job| waits(job)).map(|job| (job.class(), job.priority)).collect();
    let lanes = store.lanes().await.expect("lanes");
    assert_eq!(lanes.len(), expected.len());
    assert_eq!(lanes.into_iter().collect::<BTreeSet<_>>(), expected);
}

pub async fn ready_pages_give_every_job_once(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(2));
    let jobs = random_jobs(&mut random, 500);
    leader.commit(jobs_batch(jobs.iter().cloned().map(new)), vec![]).await;
    for (class, priority) in store.lanes().await.expect("lanes") {
        let mut expected: Vec<_> =
            jobs.iter().filter(|job| waits(job) && job.class() == class && job.priority == priority).cloned().collect();
        expected.sort_by_key(|job| job.seq);
        let mut found: Vec<Job> = Vec::new();
        loop {
            let after = found.last().map(|job| job.seq);
            let limit = random.below(20) + 1;
            let page = store.ready(class, priority, after, limit, leader.number).await.expect("ready");
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, expected);
    }
}

pub async fn due_pages_give_every_job_once(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(3));
    let jobs = random_jobs(&mut random, 500);
    leader.commit(jobs_batch(jobs.iter().cloned().map(new)), vec![]).await;
    let timed = |job: &&Job| matches!(job.state.kind(), StateKind::Pending | StateKind::Delayed);
    let mut expected: Vec<_> = jobs.iter().filter(timed).filter(|job| job.due_at().is_some()).cloned().collect();
    expected.sort_by_key(|job| (job.due_at(), job.id));
    let mut found: Vec<Job> = Vec::new();
    loop {
        let after = found.last().and_then(|job| Some((job.due_at()?, job.id)));
        let page = store.due(after, random.below(40) + 1).await.expect("due");
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, expected);
}

pub async fn list_pages_give_every_job_once(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(4));
    let jobs = random_jobs(&mut random, 400);
    leader.commit(jobs_batch(jobs.iter().cloned().map(new)), vec![]).await;
    for round in 0..12 {
        let states: Vec<_> = StateKind::ALL.into_iter().filter(|_| round % 4 != 0 && random.below(3) == 0).collect();
        let queue = (round % 3 == 0).then(|| random_queue(&mut random));
        let filter = Filter { states, queue, ..Filter::default() };
        let wanted = |job: &&Job| {
            (filter.states.is_empty() || filter.states.contains(&job.state.kind()))
                && filter.queue.as_ref().is_none_or(|queue| **queue == *job.queue)
        };
        let mut expected: Vec<_> = jobs.iter().filter(wanted).cloned().collect();
        expected.sort_by_key(|job| std::cmp::Reverse(job.id));
        let found = listed(&store, &filter, || random.below(30) + 1).await;
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn workers_and_tokens_come_and_go(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let workers = vec![worker(1, Phase::Active), worker(2, Phase::Active)];
    leader.commit(Batch { workers, tokens: vec![token(1), token(2)], ..Batch::default() }, vec![]).await;
    let used = WorkerToken { used_by: Some(Hash([9; 32])), ..token(2) };
    let batch = Batch {
        workers: vec![worker(1, Phase::Terminated), worker(2, Phase::Draining)],
        tokens: vec![used.clone()],
        dropped_tokens: vec![token(1).hash],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(store.workers().await.expect("workers"), [worker(2, Phase::Draining)]);
    assert_eq!(store.tokens().await.expect("tokens"), [used]);
}

pub async fn log_positions_and_tail(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let chunks = [chunk(1, 1, 0, 10), chunk(1, 1, 10, 5), chunk(1, 2, 0, 3), chunk(1, 3, 0, 4), chunk(1, 3, 4, 1)];
    leader.commit(Batch::default(), [&chunks[..], &[chunk(2, 9, 0, 7)]].concat()).await;
    let all = usize::MAX >> 1;
    let cases = [
        (LogPosition::START, 0),
        (at(1, 0), 0),
        (at(1, 9), 0),
        (at(1, 10), 1),
        (at(1, 14), 1),
        (at(1, 15), 2),
        (at(1, 99), 2),
        (at(2, 0), 2),
        (at(2, 3), 3),
        (at(3, 4), 4),
        (at(3, 5), 5),
        (at(4, 0), 5),
    ];
    for (position, first) in cases {
        let found = store.logs(job_id(1), position, all).await.expect("logs");
        assert_eq!(found, chunks[first..], "{position:?}");
        let one = store.logs(job_id(1), position, 0).await.expect("logs");
        assert_eq!(one, chunks[first..].iter().take(1).cloned().collect::<Vec<_>>(), "{position:?}");
    }
    for (entries, first) in [(0, 5), (1, 4), (2, 3), (5, 3), (6, 2), (8, 2), (9, 1), (13, 1), (14, 0), (999, 0)] {
        assert_eq!(store.log_tail(job_id(1), entries).await.expect("tail"), spans(&chunks[first..]), "{entries}");
    }
    let wanted = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 9), (2, 1)].map(|(job, run)| (job_id(job), execution_id(run)));
    let counts: BTreeMap<_, _> = store.log_entries(wanted.to_vec()).await.expect("entries").into_iter().collect();
    let expected = [(1, 15), (2, 3), (3, 5), (9, 7)].map(|(run, count)| (execution_id(run), count));
    assert_eq!(counts, expected.into_iter().collect());
}

pub async fn log_repeats_are_ignored(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    leader.commit(Batch::default(), vec![chunk(1, 1, 0, 10)]).await;
    let other = LogChunk { data: Arc::from(*b"other"), ..chunk(1, 1, 0, 10) };
    leader.commit(Batch::default(), vec![other.clone(), other, chunk(1, 1, 10, 1), chunk(1, 1, 10, 1)]).await;
    assert_eq!(store.log_tail(job_id(1), 99).await.expect("tail"), spans(&[chunk(1, 1, 0, 10), chunk(1, 1, 10, 1)]));
}

pub async fn log_pages_give_every_chunk_once(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(5));
    let mut chunks = Vec::new();
    for execution in 1..4 {
        let mut first = 0;
        for _ in 0..400 {
            let count = random.below(9) as u32 + 1;
            let data = vec![first as u8; random.below(300)].into();
            chunks.push(LogChunk { data, ..chunk(1, execution, first, count) });
            first += u64::from(count);
        }
    }
    leader.commit(Batch::default(), chunks.clone()).await;
    let mut found: Vec<LogChunk> = Vec::new();
    loop {
        let next = |chunk: &LogChunk| LogPosition { execution: chunk.execution, entry: chunk.end() };
        let from = found.last().map_or(LogPosition::START, next);
        let bytes = random.below(200_000) + 1;
        let page = store.logs(job_id(1), from, bytes).await.expect("logs");
        let all_but_last: usize = page.iter().rev().skip(1).map(|chunk| chunk.data.len()).sum();
        assert!(all_but_last < bytes);
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, chunks);
    let tail = store.log_tail(job_id(1), 5_000).await.expect("tail");
    assert_eq!(tail, spans(&chunks[chunks.len() - tail.len()..]));
    let held: u64 = tail.iter().map(|chunk| u64::from(chunk.count)).sum();
    assert!(held >= 5_000 && held - u64::from(tail[0].count) < 5_000);
}

pub async fn much_log_in_one_commit(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let piece = 64 << 10;
    let chunks: Vec<LogChunk> =
        (0..160).map(|i| LogChunk { data: vec![i as u8; piece].into(), ..chunk(1, 1, i * 10, 10) }).collect();
    leader.commit(Batch::default(), chunks.clone()).await;
    assert_eq!(store.logs(job_id(1), LogPosition::START, usize::MAX >> 1).await.expect("logs"), chunks);
    assert_eq!(store.logs(job_id(1), at(1, 805), piece * 2).await.expect("logs"), chunks[80..82]);
}

/// Every commit writes one number into all of some jobs; a reader must never see two numbers.
pub async fn readers_see_whole_commits(store: Arc<dyn Store>) {
    const JOBS: u64 = 60;
    const ROUNDS: u32 = 60;
    let mut leader = Leader::of(&store).await;
    let round = |attempt: u32| (0..JOBS).map(move |n| Job { attempt, ..pending(n) });
    leader.commit(jobs_batch(round(0).map(new)), vec![]).await;
    let reader = |store: Arc<dyn Store>| async move {
        let mut last = 0;
        while last < ROUNDS {
            let jobs = store.jobs((0..JOBS).map(job_id).collect()).await.expect("jobs");
            let attempts: BTreeSet<u32> = jobs.iter().map(|job| job.attempt).collect();
            assert_eq!((jobs.len() as u64, attempts.len()), (JOBS, 1));
            assert!(attempts.first() >= Some(&last), "time ran backwards");
            last = *attempts.first().expect("one");
            let lane = pending(0);
            let ready = store.ready(lane.class(), lane.priority, None, 1000, 0).await.expect("ready");
            assert_eq!(ready.iter().map(|job| job.attempt).collect::<BTreeSet<_>>().len(), 1);
        }
    };
    let readers: Vec<_> = (0..3).map(|_| tokio::spawn(reader(Arc::clone(&store)))).collect();
    for attempt in 1..=ROUNDS {
        leader.commit(jobs_batch(round(attempt).map(known)), vec![]).await;
    }
    for reader in readers {
        reader.await.expect("reader");
    }
}

pub async fn large_commits(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let count = 6_000;
    leader.commit(jobs_batch((0..count).map(|n| new(pending(n)))), vec![]).await;
    let running = |n: u64| Job { state: State::Running { run: run(n), since: Time(1), cancel: None }, ..pending(n) };
    leader.commit(jobs_batch((0..count).map(|n| known(running(n)))), vec![]).await;
    assert_eq!(store.active().await.expect("active").len() as u64, count);
    assert_eq!(store.payloads((0..count).map(job_id).collect()).await.expect("payloads").len() as u64, count);
    assert!(store.lanes().await.expect("lanes").is_empty());
}

/// All pages of a listing.
pub(crate) async fn listed(store: &Arc<dyn Store>, filter: &Filter, mut limit: impl FnMut() -> usize) -> Vec<Job> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let limit = limit();
        let page = store.list(filter.clone(), before, limit).await.expect("list");
        assert!(page.jobs.len() <= limit);
        found.extend(page.jobs);
        match page.next {
            Some(next) if before.is_none_or(|before| next < before) => before = Some(next),
            Some(next) => panic!("the page before {before:?} leads to {next}"),
            None => return found,
        }
    }
}

/// Commits as one server's loop would, numbering its batches.
#[derive(Clone)]
pub(crate) struct Leader {
    store: Arc<dyn Store>,
    epoch: u64,
    number: u64,
}

impl Leader {
    pub(crate) async fn of(store: &Arc<dyn Store>) -> Self {
        Self { store: Arc::clone(store), epoch: store.lead().await.expect("lead").epoch, number: 0 }
    }

    pub(crate) async fn commit(&mut self, batch: Batch, logs: Vec<LogChunk>) {
        self.try_commit(batch, logs).await.expect("commit");
    }

    /// Counts a batch only once it is made, as a retried commit keeps its number.
    pub(crate) async fn try_commit(&mut self, batch: Batch, logs: Vec<LogChunk>) -> Result<(), StoreError> {
        self.try_commit_all(batch, logs, Aside::default()).await
    }

    async fn try_commit_all(&mut self, batch: Batch, logs: Vec<LogChunk>, aside: Aside) -> Result<(), StoreError> {
        let batch = Batch { number: self.number + 1, ..batch };
        self.store.commit(Arc::new(Commit { epoch: self.epoch, batch, logs, aside })).await?;
        self.number += 1;
        Ok(())
    }

    async fn commit_aside(&mut self, aside: Aside) {
        self.try_commit_all(Batch::default(), vec![], aside).await.expect("commit");
    }
}

/// SplitMix64: enough to vary tests, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

pub(crate) fn job_id(n: u64) -> JobId {
    JobId(Uuid::from_u64_pair(0x0199_0000_0000_7000, 0x8000_0000_0000_0000 | n))
}

fn execution_id(n: u64) -> ExecutionId {
    ExecutionId(made(1_000, 1, n))
}

fn at(execution: u64, entry: u64) -> LogPosition {
    LogPosition { execution: execution_id(execution), entry }
}

fn run(n: u64) -> Run {
    Run { execution: execution_id(n), worker: WorkerId(Uuid::from_u128(5)) }
}

fn chunk(job: u64, execution: u64, first: u64, count: u32) -> LogChunk {
    let data = format!("{job} {execution} {first} {count}").into_bytes().into();
    LogChunk { job: job_id(job), execution: execution_id(execution), first, count, data }
}

fn plain_spec() -> JobSpec {
    JobSpec::new("echo", Work::Shell { program: "echo".into(), args: vec!["hello".into()] })
}

fn full_spec() -> JobSpec {
    JobSpec {
        environment: [("A".to_owned(), "b".to_owned())].into(),
        secrets: [("TOKEN".to_owned(), Secret("not to be seen".into()))].into(),
        working_directory: Some("/tmp".into()),
        stdin: vec![0, 1, 255],
        requirements: Requirements::of(1500, 1 << 40),
        timeouts: queue_timeout(60),
        run_at: Some(Time(i64::MAX)),
        ..JobSpec::new("ü\u{1F600}", Work::Script { interpreter: "sh".into(), content: "exit 0\n".into() })
    }
}

fn spans(chunks: &[LogChunk]) -> Vec<LogSpan> {
    let span = |chunk: &LogChunk| LogSpan { execution: chunk.execution, first: chunk.first, count: chunk.count };
    chunks.iter().map(span).collect()
}

fn payload(bytes: usize) -> Arc<[u8]> {
    (0..bytes).map(|n| n as u8).collect()
}

fn queue_timeout(seconds: u64) -> hodei_core::spec::Timeouts {
    hodei_core::spec::Timeouts { queue: Some(Millis::seconds(seconds)), ..Default::default() }
}

pub(crate) fn pending(n: u64) -> Job {
    Job::new(job_id(n), &plain_spec(), State::Pending { since: Time(1_000) }, n, Time(1_000))
}

fn waits(job: &Job) -> bool {
    job.state.kind() == StateKind::Pending
}

fn full_job(n: u64, state: State) -> Job {
    let ended = |outcome| Execution {
        id: execution_id(n),
        worker: WorkerId(Uuid::from_u128(5)),
        attempt: 2,
        assigned_at: Time(3),
        started_at: Some(Time(4)),
        finished_at: Some(Time(5)),
        outcome: Some(outcome),
        progress: Some(Progress { basis_points: 1234, message: "some".into() }),
        log_entries: u64::MAX,
    };
    let outcomes = [Outcome::Failed(Failure::exit(3)), Outcome::Cancelled, Outcome::Released, Outcome::Succeeded];
    Job {
        executions: outcomes.map(ended).into(),
        attempt: 2,
        losses: 1,
        ..Job::new(job_id(n), &full_spec(), state, n, Time(9))
    }
}

fn all_states() -> [State; 10] {
    let cancel = Cancel { reason: "changed my mind".into(), at: Time(77) };
    [
        State::Delayed { until: Time(5_000), reason: DelayReason::Retry },
        State::Pending { since: Time(1_000) },
        State::Scheduled { run: run(1), since: Time(1_000), cancel: None },
        State::Running { run: run(1), since: Time(1_000), cancel: Some(cancel.clone()) },
        State::Succeeded { at: Time(2_000) },
        State::Failed { at: Time(2_000) },
        State::TimedOut { at: Time(2_000) },
        State::Cancelled { at: Time(2_000), cancel },
        State::Waiting { since: Time(1_000) },
        State::Blocked { since: Time(1_000), reason: "a person must look".into() },
    ]
}

fn random_queue(random: &mut Random) -> String {
    format!("queue-{}", random.below(4))
}

/// Jobs in no order of id or place, with few due times so that many are equal.
fn random_jobs(random: &mut Random, count: u64) -> Vec<Job> {
    let mut ids = BTreeSet::new();
    while (ids.len() as u64) < count {
        ids.insert(random.next() >> 8);
    }
    let mut seqs: Vec<u64> = (0..count).collect();
    (0..count).rev().for_each(|i| seqs.swap(i as usize, random.below(i as usize + 1)));
    ids.into_iter().zip(seqs).map(|(id, seq)| random_job(random, id, seq)).collect()
}

fn random_job(random: &mut Random, id: u64, seq: u64) -> Job {
    let state = match random.below(14) {
        0..4 => State::Pending { since: Time(random.below(5) as i64 * 1_000) },
        other => all_states()[other - 4].clone(),
    };
    let state = match state {
        State::Delayed { reason, .. } => State::Delayed { until: Time(random.below(9) as i64 * 1_000), reason },
        other => other,
    };
    let spec = JobSpec {
        queue: random_queue(random),
        priority: Priority::ALL[random.below(4)],
        timeouts: if random.below(2) == 0 { queue_timeout(3) } else { Default::default() },
        requirements: Requirements::of(random.below(2) as u64 * 500, 0),
        ..plain_spec()
    };
    Job::new(job_id(id), &spec, state, seq, Time(0))
}

fn worker(n: u128, phase: Phase) -> WorkerRecord {
    let capacity = Capacity { slots: 4, cpu_millis: 4_000, memory_bytes: 1 << 33, ..Capacity::default() };
    let info = WorkerInfo {
        name: format!("worker {n}"),
        version: "1".into(),
        hostname: "here".into(),
        capacity,
        ..WorkerInfo::default()
    };
    WorkerRecord {
        id: WorkerId(Uuid::from_u128(n)),
        info,
        session: Some(Hash([n as u8; 32])),
        incarnation: Some(Incarnation(Uuid::from_u128(n + 100))),
        phase,
        registered_at: Time(12),
        origin: None,
        drain: None,
        leaving: None,
        history: BTreeMap::new(),
    }
}

fn token(n: u8) -> WorkerToken {
    let worker = WorkerId(Uuid::from_u128(n.into()));
    WorkerToken { hash: Hash([n; 32]), worker, expires_at: Time(99), used_by: None }
}

/// The first write of a job.
pub(crate) fn new(job: Job) -> JobWrite {
    JobWrite { job: job.into(), payload: Some(payload(60)), result: None, data: None, input: None }
}

/// A later write of a job.
pub(crate) fn known(job: Job) -> JobWrite {
    JobWrite { job: job.into(), payload: None, result: None, data: None, input: None }
}

pub(crate) fn jobs_batch(jobs: impl IntoIterator<Item = JobWrite>) -> Batch {
    Batch { jobs: jobs.into_iter().collect(), ..Batch::default() }
}

fn by_id(jobs: Vec<Job>) -> HashMap<JobId, Job> {
    jobs.into_iter().map(|job| (job.id, job)).collect()
}
