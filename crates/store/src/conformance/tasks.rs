//! Checks of what is kept besides jobs, placements, workers and logs.

use super::*;
use crate::{AuditFilter, DeadLetterFilter, DeliveryFilter, DeliveryKind, ErrorGroup, JobData};
use hodei_core::{
    access::{ApiToken, AuditEntry, Role},
    brain::{Edge, ScheduleWrite, Settling},
    dead_letter::{DeadLetter, Fingerprint},
    id::{DeliveryId, ScheduleId, TokenId},
    job::Extra,
    journal::{Change, JobStep, JournalId, QueueChange, Supervision},
    placement::{FleetPolicy, SchedulerSettings},
    provider::{ProviderKind, ProviderRecord},
    queue::{QueueRecord, QueueSettings, Starts},
    schedule::{Misfire, Overlap, ScheduleRecord, Timing},
    spec::Webhook,
    state::FailureKind,
    template::WorkerTemplate,
    webhook::{Delivery, DeliveryState, DeliveryTry},
};
use std::cmp::Reverse;

fn edge(dependency: u64, dependent: u64) -> Edge {
    Edge { dependency: job_id(dependency), dependent: job_id(dependent) }
}

async fn dependents(store: &Arc<dyn Store>, job: u64, after: Option<u64>, limit: usize) -> Vec<JobId> {
    let of = Settling { job: job_id(job), told: after.map(job_id) };
    let found = store.dependents(vec![of], limit).await.expect("dependents");
    assert!(found.iter().all(|(dependency, _)| *dependency == of.job));
    found.into_iter().map(|(_, job)| job.id).collect()
}

pub async fn links_come_and_go(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let mark = |job, told: Option<u64>| Settling { job: job_id(job), told: told.map(job_id) };
    let batch = Batch {
        edges: vec![edge(1, 5), edge(1, 3), edge(1, 4), edge(2, 3), edge(2, 6)],
        dropped_edges: vec![edge(2, 6)],
        settling: vec![mark(1, None), mark(2, None), mark(1, Some(3)), mark(7, None)],
        told: vec![job_id(7)],
        keys: vec![("a".into(), job_id(1)), ("ü".into(), job_id(2))],
        ..jobs_batch((1..7).map(|n| new(pending(n))))
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(dependents(&store, 1, None, 9).await, [3, 4, 5].map(job_id));
    assert_eq!(dependents(&store, 1, None, 2).await, [3, 4].map(job_id));
    assert_eq!(dependents(&store, 1, Some(3), 1).await, [job_id(4)]);
    assert_eq!(dependents(&store, 1, Some(5), 9).await, []);
    assert_eq!(dependents(&store, 2, None, 9).await, [job_id(3)]);
    assert_eq!(dependents(&store, 3, None, 9).await, []);
    let of = vec![mark(2, None), mark(3, None), mark(1, Some(3))];
    let mut found = store.dependents(of, 1).await.expect("dependents");
    found.sort_by_key(|(dependency, _)| *dependency);
    assert_eq!(found, [(job_id(1), pending(4)), (job_id(2), pending(3))]);
    assert_eq!(store.settling().await.expect("settling"), [mark(1, Some(3)), mark(2, None)]);
    let mut keys = store.keys(["ü", "a", "b", "a\0"].map(Arc::from).to_vec()).await.expect("keys");
    keys.sort();
    assert_eq!(keys, [("a".into(), job_id(1)), ("ü".into(), job_id(2))]);
    let batch = Batch {
        dropped_edges: vec![edge(1, 4), edge(9, 9)],
        settling: vec![mark(1, Some(5))],
        told: vec![job_id(2)],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(dependents(&store, 1, None, 9).await, [3, 5].map(job_id));
    // The edge to a forgotten job takes no place in a page.
    leader.commit(Batch { forgotten: vec![job_id(3)], ..Batch::default() }, vec![]).await;
    assert_eq!(dependents(&store, 1, None, 1).await, [job_id(5)]);
    leader.commit(jobs_batch([new(pending(3))]), vec![]).await;
    // A key stays with the first that has it.
    let batch = Batch { keys: vec![("a".into(), job_id(3)), ("c".into(), job_id(3))], ..Batch::default() };
    leader.commit(batch, vec![]).await;
    let mut keys = store.keys(["a", "c"].map(Arc::from).to_vec()).await.expect("keys");
    keys.sort();
    assert_eq!(keys, [("a".into(), job_id(1)), ("c".into(), job_id(3))]);
    assert_eq!(store.settling().await.expect("settling"), [mark(1, Some(5))]);
}

fn queue(name: &str, paused: bool) -> QueueRecord {
    let settings = QueueSettings { concurrency: Some(3), ..QueueSettings::default() };
    QueueRecord { name: name.into(), paused, settings, starts: Starts::default() }
}

fn schedule(n: u128, runs: u64) -> ScheduleRecord {
    ScheduleRecord {
        id: ScheduleId(Uuid::from_u128(n)),
        name: format!("schedule {n}").into(),
        description: "each night".into(),
        timing: Timing::Cron { expression: "0 3 * * *".into(), time_zone: "Europe/Madrid".into() },
        overlap: Overlap::QueueOne,
        misfire: Misfire::CatchUp(3),
        enabled: true,
        created_at: Time(1),
        last_tick: Some(Time(2)),
        next_tick: Some(Time(3)),
        runs,
        skipped: 1,
        last_job: Some(job_id(1)),
        live: vec![job_id(1), job_id(2)],
        queued: None,
        webhook: None,
    }
}

fn schedule_write(record: ScheduleRecord, bytes: Option<usize>) -> ScheduleWrite {
    ScheduleWrite { record, payload: bytes.map(payload), spec: None }
}

pub async fn queues_and_schedules_come_and_go(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let batch = Batch {
        queues: vec![queue("a", false), queue("b", false), queue("a", true)],
        schedules: vec![
            schedule_write(schedule(1, 0), Some(10)),
            schedule_write(schedule(2, 0), Some(20)),
            schedule_write(schedule(3, 0), Some(30)),
            schedule_write(schedule(1, 1), None),
        ],
        dropped_schedules: vec![schedule(3, 0).id],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(store.queues().await.expect("queues"), [queue("a", true), queue("b", false)]);
    let expected = [(schedule(1, 1), payload(10).to_vec()), (schedule(2, 0), payload(20).to_vec())];
    assert_eq!(store.schedules().await.expect("schedules"), expected);
    let batch = Batch {
        queues: vec![queue("b", true)],
        schedules: vec![schedule_write(schedule(2, 7), None), schedule_write(schedule(1, 2), Some(11))],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(store.queues().await.expect("queues"), [queue("a", true), queue("b", true)]);
    let expected = [(schedule(1, 2), payload(11).to_vec()), (schedule(2, 7), payload(20).to_vec())];
    assert_eq!(store.schedules().await.expect("schedules"), expected);
    let dropped_schedules = vec![schedule(1, 0).id, schedule(2, 0).id];
    leader.commit(Batch { dropped_schedules, ..Batch::default() }, vec![]).await;
    assert_eq!(store.schedules().await.expect("schedules"), []);
}

fn provider(name: &str, cap: u32) -> ProviderRecord {
    ProviderRecord {
        name: name.into(),
        kind: ProviderKind::Docker,
        enabled: true,
        cap,
        cost: 7,
        settings: [("host".to_owned(), "unix:///engine".to_owned())].into(),
        added_at: Time(3),
        leaving: false,
    }
}

fn template(name: &str, warm: u32) -> WorkerTemplate {
    WorkerTemplate {
        name: name.into(),
        image: Some("image:1".into()),
        labels: [("zone".into(), "a".into())].into(),
        warm,
        ..WorkerTemplate::default()
    }
}

pub async fn the_fleet_comes_and_goes(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    assert_eq!(store.scheduler().await.expect("scheduler"), None);
    let cluster = store.cluster().await.expect("a name");
    assert!(cluster.len() == 32 && cluster.chars().all(|c| c.is_ascii_hexdigit()), "{cluster}");
    let closed = SchedulerSettings { threshold: 40, fleet: FleetPolicy::Closed, ..SchedulerSettings::default() };
    let batch = Batch {
        scheduler: Some(closed),
        providers: vec![provider("b", 1), provider("A", 2), provider("b", 3), provider("gone", 4)],
        dropped_providers: vec!["gone".into()],
        templates: vec![template("small", 0), template("Large", 1)],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(store.scheduler().await.expect("scheduler"), Some(closed));
    assert_eq!(store.providers().await.expect("providers"), [provider("A", 2), provider("b", 3)]);
    assert_eq!(store.templates().await.expect("templates"), [template("Large", 1), template("small", 0)]);
    let batch = Batch {
        scheduler: Some(SchedulerSettings::default()),
        dropped_providers: vec!["A".into()],
        templates: vec![template("small", 5)],
        dropped_templates: vec!["Large".into()],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(store.scheduler().await.expect("scheduler"), Some(SchedulerSettings::default()));
    assert_eq!(store.providers().await.expect("providers"), [provider("b", 3)]);
    assert_eq!(store.templates().await.expect("templates"), [template("small", 5)]);
}

pub async fn data_and_input_replace_only_themselves(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let write = |data: Option<&[u8]>, input: Option<&[u8]>| JobWrite {
        data: data.map(Into::into),
        input: input.map(Into::into),
        ..known(pending(1))
    };
    let found = |data: Option<&[u8]>, input: Option<&[u8]>| JobData {
        job: job_id(1),
        data: data.map(Into::into),
        input: input.map(Into::into),
    };
    leader.commit(jobs_batch([new(pending(1)), new(pending(2))]), vec![]).await;
    assert_eq!(store.data(vec![job_id(1)]).await.expect("data"), []);
    let steps = [
        (write(Some(b"one"), None), found(Some(b"one"), None)),
        (write(None, Some(b"in")), found(Some(b"one"), Some(b"in"))),
        (write(Some(b""), None), found(Some(b""), Some(b"in"))),
        (write(None, None), found(Some(b""), Some(b"in"))),
        (write(Some(b"two"), Some(b"more")), found(Some(b"two"), Some(b"more"))),
    ];
    for (write, expected) in steps {
        leader.commit(jobs_batch([write]), vec![]).await;
        assert_eq!(store.data(vec![job_id(1), job_id(2)]).await.expect("data"), [expected]);
    }
}

pub async fn counts_are_kept_by_differences(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(11));
    let mut model: BTreeMap<(Arc<str>, StateKind), i64> = BTreeMap::new();
    for _ in 0..40 {
        let mut counts = Vec::new();
        for _ in 0..random.below(8) + 1 {
            let (queue, state) = (Arc::from(random_queue(&mut random)), StateKind::ALL[random.below(10)]);
            let now = model.entry((Arc::clone(&queue), state)).or_default();
            let by = if random.below(3) == 0 { -*now } else { random.below(100) as i64 - (*now).min(20) };
            *now += by;
            counts.push((queue, state, by));
        }
        leader.commit(Batch { counts, ..Batch::default() }, vec![]).await;
        let some = model.iter().filter(|(_, count)| **count > 0);
        let mut expected: Vec<_> =
            some.map(|((queue, state), count)| (Arc::clone(queue), *state, *count as u64)).collect();
        let mut found = store.counts().await.expect("counts");
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    }
}

fn letter(job: u64, failed_at: i64, group: i64) -> DeadLetter {
    DeadLetter {
        job: job_id(job),
        queue: format!("queue-{}", job % 3),
        task_type: job.is_multiple_of(2).then(|| format!("type-{}", job % 4)),
        failed_at: Time(failed_at),
        kind: FailureKind::ALL[job as usize % FailureKind::ALL.len()],
        error: format!("error of {job}\0"),
        fingerprint: Fingerprint(group),
    }
}

fn group(count: u64, first: &DeadLetter, last: &DeadLetter) -> ErrorGroup {
    let DeadLetter { fingerprint, kind, error, failed_at, .. } = last.clone();
    ErrorGroup { fingerprint, kind, example: error, count, first: first.failed_at, last: failed_at }
}

async fn letters(store: &Arc<dyn Store>, filter: &DeadLetterFilter, limit: usize) -> Vec<DeadLetter> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = store.dead_letters(filter.clone(), before, limit).await.expect("letters");
        assert!(page.letters.len() <= limit);
        found.extend(page.letters);
        match page.next {
            Some(next) if before.is_none_or(|before| next < before) => before = Some(next),
            Some(next) => panic!("the page before {before:?} leads to {next:?}"),
            None => return found,
        }
    }
}

pub async fn dead_letters_are_counted_by_group(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let [a, b, c] = [letter(1, 100, 7), letter(2, 200, 7), letter(3, 300, -8)];
    leader.commit(Batch { dead_letters: vec![a.clone(), b.clone(), c.clone()], ..Batch::default() }, vec![]).await;
    assert_eq!(store.dead_letter(a.job).await.expect("letter"), Some(a.clone()));
    assert_eq!(store.dead_letter(job_id(9)).await.expect("letter"), None);
    let groups = (3, vec![group(2, &a, &b), group(1, &c, &c)]);
    assert_eq!(store.error_groups(9).await.expect("groups"), groups);
    assert_eq!(store.error_groups(1).await.expect("groups"), (3, vec![group(2, &a, &b)]));
    // What is not there takes nothing away, whatever group it is said to have been in.
    let gone = |n: u64, group| (job_id(n), Fingerprint(group));
    let dropped_dead_letters = vec![gone(9, 7), gone(9, 7)];
    leader.commit(Batch { dropped_dead_letters, ..Batch::default() }, vec![]).await;
    assert_eq!(store.error_groups(9).await.expect("groups"), groups);
    // One is revived and fails again, in another way; one goes twice; one takes the place of another.
    let again = letter(1, 400, -8);
    let moved = letter(3, 350, 5);
    let batch = Batch {
        dropped_dead_letters: vec![gone(1, 7), gone(2, 7), gone(2, 7)],
        dead_letters: vec![again.clone(), moved.clone()],
        ..Batch::default()
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(letters(&store, &DeadLetterFilter::default(), 1).await, [again.clone(), moved.clone()]);
    let (total, mut groups) = store.error_groups(9).await.expect("groups");
    groups.sort_by_key(|group| group.fingerprint);
    assert_eq!((total, groups), (2, vec![group(1, &again, &again), group(1, &moved, &moved)]));
    let dropped_dead_letters = vec![gone(1, 0), gone(3, 0)];
    leader.commit(Batch { dropped_dead_letters, ..Batch::default() }, vec![]).await;
    assert_eq!(store.error_groups(9).await.expect("groups"), (0, vec![]));
    assert_eq!(letters(&store, &DeadLetterFilter::default(), 5).await, []);
}

pub async fn dead_letter_pages_give_every_match_once(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(12));
    let all: Vec<DeadLetter> =
        (0..300).map(|n| letter(n, random.below(50) as i64 * 100, random.below(4) as i64 - 2)).collect();
    leader.commit(Batch { dead_letters: all.clone(), ..Batch::default() }, vec![]).await;
    let none = DeadLetterFilter::default;
    let filters = [
        none(),
        DeadLetterFilter { queue: Some("queue-1".into()), ..none() },
        DeadLetterFilter { task_type: Some("type-2".into()), ..none() },
        DeadLetterFilter { kind: Some(FailureKind::ALL[3]), ..none() },
        DeadLetterFilter { fingerprint: Some(Fingerprint(-1)), ..none() },
        DeadLetterFilter { fingerprint: Some(Fingerprint(1)), queue: Some("queue-2".into()), ..none() },
        DeadLetterFilter { from: Some(Time(1_000)), to: Some(Time(2_000)), ..none() },
        DeadLetterFilter { from: Some(Time(1_000)), fingerprint: Some(Fingerprint(0)), ..none() },
        DeadLetterFilter { queue: Some("none".into()), ..none() },
        DeadLetterFilter { queue: Some("queue-1\0".into()), ..none() },
        DeadLetterFilter { task_type: Some("type-2\0".into()), ..none() },
    ];
    for filter in filters {
        let wanted = |letter: &&DeadLetter| {
            filter.queue.as_ref().is_none_or(|queue| *queue == letter.queue)
                && (filter.task_type.is_none() || filter.task_type == letter.task_type)
                && filter.kind.is_none_or(|kind| kind == letter.kind)
                && filter.fingerprint.is_none_or(|group| group == letter.fingerprint)
                && filter.from.is_none_or(|from| letter.failed_at >= from)
                && filter.to.is_none_or(|to| letter.failed_at < to)
        };
        let mut expected: Vec<_> = all.iter().filter(wanted).cloned().collect();
        expected.sort_by_key(|letter| Reverse((letter.failed_at, letter.job)));
        assert_eq!(letters(&store, &filter, random.below(20) + 1).await, expected, "{filter:?}");
    }
    let many: Vec<_> = (1_000..11_500).map(|n| letter(n, 10_000, 3)).collect();
    leader.commit(Batch { dead_letters: many, ..Batch::default() }, vec![]).await;
    let old = DeadLetterFilter { kind: Some(FailureKind::ALL[1]), to: Some(Time(5_000)), ..none() };
    let short = store.dead_letters(old, None, 5).await.expect("letters");
    assert_eq!(short.letters.len(), 5, "times lead past what is newer");
    let rare = DeadLetterFilter { queue: Some("none".into()), ..none() };
    let first = store.dead_letters(rare.clone(), None, 5).await.expect("letters");
    assert!(first.letters.is_empty() && first.next.is_some(), "it looked at enough");
    let second = store.dead_letters(rare, first.next, 5).await.expect("letters");
    assert!(second.letters.is_empty() && second.next.is_none());
}

fn delivery(n: u128, job: u64, state: DeliveryState) -> Delivery {
    let to = Webhook { url: "https://example.com/hook".into(), secret: Some(Secret("whsec_c2VjcmV0".into())) };
    let tries = vec![DeliveryTry { at: Time(4), status: Some(503), error: "later".into(), took: Millis(30) }];
    let new = Delivery::new(DeliveryId(Uuid::from_u128(n)), job_id(job), StateKind::Failed, to, Time(3));
    Delivery { state, tries, ..new }
}

pub async fn deliveries_are_found_when_they_are_due(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let due = |n, job, next| delivery(n, job, DeliveryState::Pending { next: Time(next) });
    assert_eq!(store.next_delivery().await.expect("next"), None);
    let batch = Batch {
        deliveries: vec![due(1, 1, 300), due(2, 1, 100), due(3, 2, 100), due(4, 2, 900)],
        ..jobs_batch((1..4).map(|n| new(pending(n))))
    };
    leader.commit(batch, vec![]).await;
    assert_eq!(store.next_delivery().await.expect("next"), Some(Time(100)));
    let found = store.deliveries_due(Time(300), 9).await.expect("due");
    assert_eq!(found, [due(2, 1, 100), due(3, 2, 100), due(1, 1, 300)]);
    assert_eq!(store.deliveries_due(Time(300), 1).await.expect("due"), [due(2, 1, 100)]);
    assert_eq!(store.deliveries_due(Time(99), 9).await.expect("due"), []);
    let done = delivery(2, 1, DeliveryState::Delivered { at: Time(150) });
    let failed = delivery(3, 2, DeliveryState::Failed { at: Time(160) });
    let deliveries = vec![done.clone(), failed.clone(), due(1, 1, 500), delivery(8, 77, failed.state)];
    leader.commit_aside(Aside { deliveries, ..Aside::default() }).await;
    assert_eq!(store.next_delivery().await.expect("next"), Some(Time(500)));
    assert_eq!(store.deliveries_due(Time(999), 9).await.expect("due"), [due(1, 1, 500), due(4, 2, 900)]);
    assert_eq!(store.delivery(done.id).await.expect("delivery"), Some(done.clone()));
    let of_nobody = DeliveryId(Uuid::from_u128(8));
    assert_eq!(store.delivery(of_nobody).await.expect("delivery"), None, "its job does not exist");
    let all = [due(4, 2, 900), failed.clone(), done.clone(), due(1, 1, 500)];
    let cases = [
        (DeliveryFilter::default(), all.to_vec()),
        (DeliveryFilter { job: Some(job_id(1)), state: None }, vec![done.clone(), due(1, 1, 500)]),
        (DeliveryFilter { job: Some(job_id(1)), state: Some(DeliveryKind::Delivered) }, vec![done.clone()]),
        (DeliveryFilter { job: Some(job_id(3)), state: None }, vec![]),
        (DeliveryFilter { job: None, state: Some(DeliveryKind::Pending) }, vec![due(4, 2, 900), due(1, 1, 500)]),
        (DeliveryFilter { job: None, state: Some(DeliveryKind::Failed) }, vec![failed]),
    ];
    for (filter, expected) in cases {
        let mut found: Vec<Delivery> = Vec::new();
        loop {
            let before = found.last().map(|delivery| delivery.id);
            let page = store.deliveries(filter.clone(), before, 1).await.expect("deliveries");
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, expected, "{filter:?}");
        assert_eq!(store.deliveries(filter, None, 9).await.expect("deliveries"), expected);
    }
}

fn changes(n: u64) -> Vec<Change> {
    let step = |state| JobStep { state, attempt: n as u32, at: Time(n as i64) };
    vec![
        Change::Job { id: job_id(n), steps: vec![step(StateKind::Pending), step(StateKind::Blocked)] },
        Change::Queue { name: "q".into(), what: QueueChange::Paused, at: Time(5) },
        Change::Supervision {
            worker: WorkerId(Uuid::from_u128(n.into())),
            news: Supervision { what: "a.*".into(), event: "worker_replaced".into(), detail: "d".into(), at: Time(6) },
        },
    ]
}

pub async fn the_journal_is_in_order_over_epochs(store: Arc<dyn Store>) {
    assert_eq!(store.journal_ends().await.expect("ends"), None);
    let mut expected = Vec::new();
    for life in 0..3 {
        let mut leader = Leader::of(&store).await;
        for n in 1..4 + life {
            leader.commit(Batch { changes: changes(n * 10 + life), ..Batch::default() }, vec![]).await;
            expected.push((JournalId((leader.epoch << 40) | leader.number), changes(n * 10 + life)));
            leader.commit(Batch { now: Time(9), ..Batch::default() }, vec![]).await;
        }
        let mut again = Leader { number: 0, ..leader.clone() };
        again.commit(Batch { changes: changes(99), ..Batch::default() }, vec![]).await;
    }
    assert_eq!(store.journal(JournalId(0), 99).await.expect("journal"), expected);
    for (i, (id, _)) in expected.iter().enumerate() {
        let rest = expected[i + 1..].iter().take(2).cloned().collect::<Vec<_>>();
        assert_eq!(store.journal(*id, 2).await.expect("journal"), rest);
    }
    let ends = |from: usize| Some((expected[from].0, expected[expected.len() - 1].0));
    assert_eq!(store.journal_ends().await.expect("ends"), ends(0));
    let mut leader = Leader::of(&store).await;
    leader.commit_aside(Aside { journal_from: Some(expected[4].0), ..Aside::default() }).await;
    assert_eq!(store.journal(JournalId(0), 99).await.expect("journal"), expected[4..]);
    assert_eq!(store.journal_ends().await.expect("ends"), ends(4));
    let after_all = JournalId((leader.epoch << 40) | 99);
    leader.commit_aside(Aside { journal_from: Some(after_all), ..Aside::default() }).await;
    assert_eq!(store.journal_ends().await.expect("ends"), None);
}

pub async fn api_tokens_and_audit_lines_come_back(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let token = |n: u8, revoked_at| ApiToken {
        id: TokenId(Uuid::from_u128(n.into())),
        hash: Hash([n; 32]),
        name: format!("token {n}"),
        role: Role::Operator,
        created_at: Time(1),
        expires_at: Some(Time(9)),
        revoked_at,
    };
    let actors = ["ann", "bob\0", "ann\u{1F600}"];
    let line = |n: usize| AuditEntry {
        at: Time(n as i64),
        actor: actors[n % 3].into(),
        peer: "127.0.0.1".into(),
        action: format!("action {}", n % 2),
        subject: "\0".into(),
        outcome: "ok".into(),
    };
    let all: Vec<AuditEntry> = (0..60).map(line).collect();
    let api_tokens = vec![token(1, None), token(2, None), token(2, Some(Time(5)))];
    leader.commit_aside(Aside { api_tokens, audit: all[..30].to_vec(), ..Aside::default() }).await;
    leader.commit_aside(Aside { api_tokens: vec![token(1, Some(Time(6)))], ..Aside::default() }).await;
    leader.commit_aside(Aside { audit: all[30..].to_vec(), ..Aside::default() }).await;
    let mut again = Leader { number: 0, ..leader.clone() };
    again.commit_aside(Aside { audit: all.clone(), ..Aside::default() }).await;
    let expected = [token(1, Some(Time(6))), token(2, Some(Time(5)))];
    assert_eq!(store.api_tokens().await.expect("tokens"), expected);
    let filters = [(None, None), (Some("bob\0"), None), (None, Some("action 1")), (Some("ann"), Some("action 0"))];
    for (actor, action) in filters {
        let filter = AuditFilter { actor: actor.map(Into::into), action: action.map(Into::into) };
        let wanted = |line: &&AuditEntry| {
            actor.is_none_or(|actor| actor == line.actor) && action.is_none_or(|action| action == line.action)
        };
        let expected: Vec<_> = all.iter().rev().filter(wanted).cloned().collect();
        let mut found: Vec<(u64, AuditEntry)> = Vec::new();
        loop {
            let before = found.last().map(|(number, _)| *number);
            let page = store.audit(filter.clone(), before, 7).await.expect("audit");
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert!(found.iter().rev().is_sorted_by_key(|(number, _)| *number));
        assert_eq!(found.into_iter().map(|(_, line)| line).collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

/// What the store has of one job, in all its tables.
async fn traces(store: &Arc<dyn Store>, n: u64) -> Vec<&'static str> {
    let job = job_id(n);
    let key: Arc<str> = format!("key {n}").into();
    let of_job = DeliveryFilter { job: Some(job), state: None };
    let marks = store.settling().await.expect("settling");
    let others = [n + 10, n + 20].map(job_id);
    let found = [
        ("row", !store.jobs(vec![job]).await.expect("jobs").is_empty()),
        ("payload", !store.payloads(vec![job]).await.expect("payloads").is_empty()),
        ("result", !store.results(vec![job]).await.expect("results").is_empty()),
        ("data", !store.data(vec![job]).await.expect("data").is_empty()),
        ("log", !store.logs(job, LogPosition::START, 1).await.expect("logs").is_empty()),
        ("dependent", !dependents(store, n, None, 1).await.is_empty()),
        ("dependency", dependents(store, n + 20, None, 9).await.contains(&job)),
        ("mark", marks.iter().any(|mark| mark.job == job)),
        ("key", !store.keys(vec![key]).await.expect("keys").is_empty()),
        ("letter", store.dead_letter(job).await.expect("letter").is_some()),
        ("delivery", !store.deliveries(of_job, None, 1).await.expect("deliveries").is_empty()),
        ("others", store.jobs(others.to_vec()).await.expect("jobs").len() < 2),
    ];
    found.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

pub async fn forgotten_jobs_leave_nothing(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let whole = |n: u64| JobWrite {
        result: Some(payload(5)),
        data: Some(payload(6)),
        input: Some(payload(7)),
        ..new(pending(n))
    };
    let jobs = [1, 2, 3];
    let due = |n: u64| delivery(n.into(), n, DeliveryState::Pending { next: Time(1) });
    let batch = Batch {
        edges: jobs.iter().flat_map(|n| [edge(*n, n + 10), edge(n + 20, *n)]).collect(),
        settling: jobs.iter().map(|n| Settling { job: job_id(*n), told: None }).collect(),
        keys: jobs.iter().map(|n| (format!("key {n}").into(), job_id(*n))).collect(),
        dead_letters: jobs.iter().map(|n| letter(*n, 100, 5)).collect(),
        deliveries: jobs.iter().map(|n| due(*n)).collect(),
        ..jobs_batch(jobs.iter().flat_map(|n| [whole(*n), new(pending(n + 10)), new(pending(n + 20))]))
    };
    leader.commit(batch, jobs.iter().map(|n| chunk(*n, *n, 0, 2)).collect()).await;
    let all = traces(&store, 1).await;
    assert_eq!(all.len(), 11, "{all:?}");
    assert_eq!(traces(&store, 2).await, all);
    let forgotten = vec![job_id(1), job_id(2)];
    // Nor does anything stay that comes with the same commit.
    let batch = Batch { forgotten, dead_letters: vec![letter(2, 200, 6)], ..Batch::default() };
    leader.commit(batch, vec![chunk(1, 1, 2, 2)]).await;
    assert_eq!(traces(&store, 1).await, Vec::<&str>::new());
    assert_eq!(traces(&store, 2).await, Vec::<&str>::new());
    assert_eq!(traces(&store, 3).await, all);
    assert_eq!(store.error_groups(9).await.expect("groups").0, 1);
    let late = delivery(1, 1, DeliveryState::Delivered { at: Time(9) });
    leader.commit_aside(Aside { deliveries: vec![late], ..Aside::default() }).await;
    assert_eq!(traces(&store, 1).await, Vec::<&str>::new());
    leader.commit(Batch { keys: vec![("key 1".into(), job_id(1))], ..jobs_batch([new(pending(1))]) }, vec![]).await;
    // An edge goes with the job that is waited for; nobody is given the id of a forgotten one.
    assert_eq!(traces(&store, 1).await, ["row", "payload", "dependency", "key"]);
    leader.commit(Batch { forgotten: vec![job_id(21)], ..Batch::default() }, vec![]).await;
    assert_eq!(dependents(&store, 21, None, 9).await, []);
}

const NOON: i64 = 1_800_000_000_000;

/// A job that was made in this second, with something to find it by.
fn made_at(random: &mut Random, n: u64, second: i64) -> Job {
    let at = NOON + second * 1_000;
    let pick = |random: &mut Random, word: &str| format!("{word}-{}", random.below(3));
    let task_type = pick(random, "type");
    let spec = JobSpec {
        name: pick(random, "name"),
        queue: pick(random, "queue"),
        tags: vec![pick(random, "tag"), "all".into()],
        ..JobSpec::new("", Work::Task { task_type, payload: vec![] })
    };
    let state = all_states()[random.below(10)].clone();
    // The clock that the id was made by is a little behind.
    let mut job = Job::new(JobId(made(at - random.below(500) as i64, 1, n)), &spec, state, n, Time(at));
    job.extra_mut().parent = (random.below(2) == 0).then(|| job_id(random.below(3) as u64));
    job.extra_mut().schedule = (random.below(2) == 0).then(|| schedule(random.below(3) as u128, 0).id);
    if random.below(4) == 0 {
        job.extra = None;
    }
    job
}

fn wanted(filter: &Filter, job: &Job) -> bool {
    let none = Extra::default();
    let extra = job.extra.as_deref().unwrap_or(&none);
    (filter.states.is_empty() || filter.states.contains(&job.state.kind()))
        && filter.queue.as_ref().is_none_or(|queue| **queue == *job.queue)
        && filter.task_type.as_ref().is_none_or(|kind| job.task_type.as_ref().is_some_and(|own| **own == **kind))
        && filter.tag.as_ref().is_none_or(|tag| extra.tags.iter().any(|own| **own == **tag))
        && filter.name.as_ref().is_none_or(|name| **name == *job.name)
        && (filter.parent.is_none() || filter.parent == extra.parent)
        && (filter.schedule.is_none() || filter.schedule == extra.schedule)
        && filter.from.is_none_or(|from| job.created_at >= from)
        && filter.to.is_none_or(|to| job.created_at < to)
}

pub async fn every_filter_gives_what_it_says(store: Arc<dyn Store>) {
    let (mut leader, mut random) = (Leader::of(&store).await, Random(13));
    let jobs: Vec<Job> = (0..400).map(|n| made_at(&mut random, n, n as i64 * 5)).collect();
    let counts = jobs.iter().map(|job| (Arc::clone(&job.queue), job.state.kind(), 1)).collect();
    leader.commit(Batch { counts, ..jobs_batch(jobs.iter().cloned().map(new)) }, vec![]).await;
    for round in 0..80 {
        let on = |bit: u32, random: &mut Random| round == bit as usize || (round > 8 && random.below(4) == 0);
        let filter = Filter {
            states: if on(0, &mut random) {
                StateKind::ALL.into_iter().filter(|_| random.below(3) == 0).collect()
            } else {
                vec![]
            },
            queue: on(1, &mut random).then(|| "queue-1".into()),
            task_type: on(2, &mut random).then(|| "type-1".into()),
            tag: on(3, &mut random).then(|| "tag-1".into()),
            name: on(4, &mut random).then(|| "name-1".into()),
            parent: on(5, &mut random).then(|| job_id(1)),
            schedule: on(6, &mut random).then(|| schedule(1, 0).id),
            from: on(7, &mut random).then(|| Time(NOON + random.below(2_000_000) as i64)),
            to: on(8, &mut random).then(|| Time(NOON + random.below(2_000_000) as i64)),
        };
        let mut expected: Vec<Job> = jobs.iter().filter(|job| wanted(&filter, job)).cloned().collect();
        expected.sort_by_key(|job| Reverse(job.id));
        let found = listed(&store, &filter, || random.below(40) + 1).await;
        assert_eq!(found, expected, "{filter:?}");
    }
    let odd = Filter { queue: Some("queue-1\0".into()), ..Filter::default() };
    assert_eq!(listed(&store, &odd, || 9).await, []);
    assert!(store.list(Filter::default(), None, 0).await.expect("list").jobs.is_empty());
}

/// A page looks at a bounded number of rows, and where one walk stopped another must not run ahead.
pub async fn listings_look_at_a_bounded_number_of_rows(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let job = |n: u64| {
        let state = if n.is_multiple_of(3) { State::Failed { at: Time(1) } } else { State::Succeeded { at: Time(1) } };
        let name = if n % 2_000 < 2 { "rare" } else { "common" };
        Job { state, name: name.into(), ..pending(n) }
    };
    let jobs: Vec<Job> = (0..24_000).map(job).collect();
    leader.commit(jobs_batch(jobs.iter().cloned().map(new)), vec![]).await;
    let states = [vec![], vec![StateKind::Failed], vec![StateKind::Failed, StateKind::Succeeded, StateKind::Waiting]];
    for states in states {
        let filter = Filter { states, name: Some("rare".into()), ..Filter::default() };
        let mut expected: Vec<Job> = jobs.iter().filter(|job| wanted(&filter, job)).cloned().collect();
        expected.reverse();
        for limit in [1, 3, 1_000] {
            assert_eq!(listed(&store, &filter, || limit).await, expected, "{filter:?}");
        }
        let nobody = Filter { name: Some("nobody".into()), ..filter };
        let page = store.list(nobody.clone(), None, 5).await.expect("list");
        let bounded = nobody.states.len() != 1;
        assert_eq!((page.jobs.len(), page.next.is_some()), (0, bounded), "{nobody:?}");
        assert_eq!(listed(&store, &nobody, || 5).await, []);
    }
    let many = store.list(Filter::default(), None, 20_000).await.expect("list");
    assert_eq!((many.jobs.len(), many.next), (10_000, Some(job_id(14_000))));
}

pub async fn expired_jobs_are_old_and_over(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let day = 86_400_000;
    let ended = |n: u64, made_on: i64, ended_on: i64, state: fn(Time) -> State| {
        let (made_at, at) = (NOON + made_on * day, NOON + ended_on * day);
        Job::new(JobId(made(made_at, 1, n)), &plain_spec(), state(Time(at)), n, Time(made_at))
    };
    let good = |at| State::Succeeded { at };
    let bad = |at| State::Failed { at };
    let waits = |since| State::Waiting { since };
    let jobs = [
        ended(1, 0, 0, good),
        ended(2, 0, 5, good),
        ended(3, 1, 1, bad),
        ended(4, 1, 1, good),
        ended(5, 1, 1, good),
        ended(6, 2, 2, good),
        ended(7, 3, 3, waits),
        ended(8, 9, 9, good),
    ];
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    leader.commit(jobs_batch(jobs.iter().cloned().map(new)), vec![]).await;
    let before = Time(NOON + 4 * day);
    let all = |state, before: Time| {
        let store = Arc::clone(&store);
        async move {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let (page, next) = store.expired(state, before, after, 2).await.expect("expired");
                assert!(page.len() <= 2);
                found.extend(page);
                match next {
                    Some(next) if after.is_none_or(|after| next > after) => after = Some(next),
                    Some(next) => panic!("{after:?} leads to {next}"),
                    None => return found,
                }
            }
        }
    };
    assert_eq!(all(StateKind::Succeeded, before).await, [ids[0], ids[3], ids[4], ids[5]]);
    assert_eq!(all(StateKind::Failed, before).await, [ids[2]]);
    assert_eq!(all(StateKind::Waiting, before).await, [], "it is not finished");
    assert_eq!(all(StateKind::Succeeded, Time(NOON)).await, []);
    let over = Job { state: good(Time(NOON + 3 * day)), ..jobs[6].clone() };
    leader.commit(jobs_batch([known(over)]), vec![]).await;
    assert_eq!(all(StateKind::Succeeded, before).await, [ids[0], ids[3], ids[4], ids[5], ids[6]]);
    let young = (0..10_500).map(|n| new(ended(100 + n, 0, 8, good)));
    leader.commit(jobs_batch(young), vec![]).await;
    let (found, next) = store.expired(StateKind::Succeeded, before, Some(ids[1]), 5).await.expect("expired");
    assert!(found.is_empty() && next.is_some(), "it looked at enough");
    assert_eq!(all(StateKind::Succeeded, before).await, [ids[0], ids[3], ids[4], ids[5], ids[6]]);
}

pub async fn jobs_are_awaited_while_unfinished_ones_depend_on_them(store: Arc<dyn Store>) {
    let mut leader = Leader::of(&store).await;
    let in_state = |n: u64, state: State| Job { state, ..pending(n) };
    let over = |n: u64| in_state(n, State::Succeeded { at: Time(9) });
    let waits = |n: u64| in_state(n, State::Waiting { since: Time(9) });
    let jobs = [over(1), over(2), over(3), waits(4), over(5), pending(6)];
    let edges = vec![edge(1, 4), edge(1, 5), edge(2, 5), edge(4, 6)];
    leader.commit(Batch { edges, ..jobs_batch(jobs.into_iter().map(new)) }, vec![]).await;
    let asked: Vec<JobId> = [1, 2, 3, 4, 9].map(job_id).to_vec();
    let awaited = async || {
        let mut found = store.awaited(asked.clone()).await.expect("awaited");
        found.sort();
        found
    };
    assert_eq!(awaited().await, [job_id(1), job_id(4)]);
    leader.commit(Batch { forgotten: vec![job_id(6)], ..jobs_batch([known(over(4))]) }, vec![]).await;
    assert_eq!(awaited().await, [], "what is forgotten waits for nobody");
}

/// A batch with something for every table that keeps sums.
fn sums(n: u64) -> Batch {
    Batch {
        counts: vec![("q".into(), StateKind::Failed, 1)],
        dead_letters: vec![letter(n, 100, 5)],
        changes: changes(n),
        edges: vec![edge(n, 1)],
        keys: vec![(format!("key {n}").into(), job_id(n))],
        queues: vec![queue("q", true)],
        schedules: vec![schedule_write(schedule(n.into(), 1), Some(9))],
        deliveries: vec![delivery(n.into(), n, DeliveryState::Pending { next: Time(1) })],
        settling: vec![Settling { job: job_id(n), told: None }],
        ..jobs_batch([new(pending(n))])
    }
}

async fn sums_of(store: &Arc<dyn Store>) -> [usize; 10] {
    let key = |n: u64| Arc::from(format!("key {n}"));
    [
        store.counts().await.expect("counts").iter().map(|(_, _, count)| *count as usize).sum(),
        store.error_groups(9).await.expect("groups").0 as usize,
        store.error_groups(9).await.expect("groups").1.len(),
        store.journal(JournalId(0), 9).await.expect("journal").len(),
        store.keys(vec![key(1), key(2)]).await.expect("keys").len(),
        store.queues().await.expect("queues").len(),
        store.schedules().await.expect("schedules").len(),
        store.deliveries(DeliveryFilter::default(), None, 9).await.expect("deliveries").len(),
        store.settling().await.expect("settling").len(),
        store.audit(AuditFilter::default(), None, 9).await.expect("audit").len(),
    ]
}

pub async fn repeats_and_former_leaders_add_nothing(store: Arc<dyn Store>) {
    let mut old = Leader::of(&store).await;
    let line = || AuditEntry {
        at: Time(1),
        actor: "ann".into(),
        peer: String::new(),
        action: "look".into(),
        subject: String::new(),
        outcome: "ok".into(),
    };
    let aside = || Aside { audit: vec![line()], ..Aside::default() };
    old.try_commit_all(sums(1), vec![], aside()).await.expect("commit");
    let expected = [1; 10];
    assert_eq!(sums_of(&store).await, expected);
    let mut again = Leader { number: 0, ..old.clone() };
    again.try_commit_all(sums(1), vec![], aside()).await.expect("a repeat");
    assert_eq!(sums_of(&store).await, expected);
    let mut leader = Leader::of(&store).await;
    let refused = old.try_commit_all(sums(2), vec![], aside()).await;
    assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    assert_eq!(sums_of(&store).await, expected);
    leader.try_commit_all(sums(2), vec![], aside()).await.expect("commit");
    assert_eq!(sums_of(&store).await, [2, 2, 1, 2, 2, 1, 2, 2, 2, 2]);
}
