//! Schedules: ticks, what overlaps, what was missed, and what a crash leaves.

use super::*;
use crate::{
    journal::{Change, ScheduleChange},
    schedule::{Misfire, Overlap, ScheduleRecord, Timing},
};

const MINUTE: Millis = Millis::seconds(60);

fn schedule_id(n: u128) -> ScheduleId {
    ScheduleId(Uuid::from_u128(0x5000 + n))
}

fn every(length: Millis) -> ScheduleRecord {
    ScheduleRecord {
        id: schedule_id(1),
        name: "backup".into(),
        description: String::new(),
        timing: Timing::Every(length),
        overlap: Overlap::Allow,
        misfire: Misfire::FireOnce,
        enabled: true,
        created_at: Time::default(),
        last_tick: None,
        next_tick: None,
        runs: 0,
        skipped: 0,
        last_job: None,
        live: Vec::new(),
        queued: None,
        webhook: None,
    }
}

fn what() -> ScheduledJob {
    ScheduledJob { spec: Arc::new(spec()), payload: Arc::from([7]) }
}

impl Rig {
    fn order(&mut self, n: u128, order: ScheduleOrder) -> Result<Answer, Refusal> {
        self.ask(|caller| Input::SetSchedule { caller, schedule: schedule_id(n), order })
    }

    fn put(&mut self, record: ScheduleRecord) -> Result<Answer, Refusal> {
        let (schedule, record) = (record.id, Box::new(record));
        self.ask(|caller| Input::SetSchedule { caller, schedule, order: ScheduleOrder::Put { record, job: what() } })
    }

    /// A rig with one schedule, made at the time that is returned.
    fn scheduled(record: ScheduleRecord) -> (Self, Time) {
        let mut rig = Rig::new();
        rig.put(record).expect("made");
        let made = rig.record().created_at;
        (rig, made)
    }

    /// What is durable of the first schedule.
    fn record(&self) -> ScheduleRecord {
        self.server.store.kept.schedules[&schedule_id(1)].0.clone()
    }

    /// The jobs that schedules made, in the order of their making.
    fn made(&self) -> Vec<Job> {
        let of_schedule = |job: &&Job| job.extra.as_ref().is_some_and(|extra| extra.schedule.is_some());
        let mut jobs: Vec<Job> = self.server.store.jobs.values().filter(of_schedule).cloned().collect();
        jobs.sort_by_key(|job| job.seq);
        jobs
    }

    fn ticks(&self) -> Vec<i64> {
        let begun = self.record().created_at;
        self.made().iter().filter_map(|job| job.extra.as_ref()?.tick).map(|tick| tick.0 - begun.0).collect()
    }

    /// The server is away for this long.
    fn away(&mut self, length: Millis) {
        self.server.now.wall = self.server.now.wall + length;
        self.server.now.elapsed = self.server.now.elapsed + length;
        self.server.restart();
        self.settle();
    }

    fn end_all(&mut self, jobs: &[JobId]) {
        for job in jobs {
            self.finish(*job, Outcome::Succeeded);
        }
    }

    fn live(&self) -> Vec<JobId> {
        self.record().live
    }
}

#[test]
fn every_tick_makes_one_job_that_carries_it() {
    let (mut rig, made) = Rig::scheduled(every(MINUTE));
    assert_eq!(rig.record().next_tick, Some(made + MINUTE));
    assert_eq!(rig.server.brain.next_wake().0, Some(made + MINUTE));
    let worker = rig.worker(1, slots(4));
    rig.news();
    rig.pass(MINUTE);
    rig.heartbeat(worker);
    rig.pass(MINUTE);
    assert_eq!(rig.ticks(), [60_000, 120_000]);
    let [first, second] = &rig.made()[..] else { panic!("two jobs") };
    assert_eq!(&*first.name, "backup_1970-01-01_00:17");
    assert_eq!(first.extra.as_ref().and_then(|extra| extra.schedule), Some(schedule_id(1)));
    let key = format!("schedule/{}/{}", schedule_id(1), (made + MINUTE).0);
    assert_eq!(rig.server.store.kept.keys.get(key.as_str()), Some(&first.id));
    let record = rig.record();
    assert_eq!((record.runs, record.last_job, record.last_tick), (2, Some(second.id), Some(Time(made.0 + 120_000))));
    let sent = rig.news().into_iter().find_map(|effect| match effect {
        Effect::Run { job, more: Some(more), .. } if job == first.id => more.tick,
        _ => None,
    });
    assert_eq!(sent, Some(("backup".into(), made + MINUTE)));
}

#[test]
fn names_are_unique_and_limits_hold() {
    let (mut rig, _) = Rig::scheduled(every(MINUTE));
    let other = |n| ScheduleRecord { id: schedule_id(n), ..every(MINUTE) };
    assert_eq!(rig.put(other(2)), Err(Refusal::ScheduleExists("backup".into())));
    for order in [ScheduleOrder::Enable, ScheduleOrder::Disable, ScheduleOrder::Delete, ScheduleOrder::Trigger] {
        assert_eq!(rig.order(9, order), Err(Refusal::NoSuchSchedule));
    }
    // A new spec for one that is gone meanwhile is not a new schedule.
    let late = ScheduleRecord { created_at: Time(5), name: "late".into(), ..other(3) };
    assert_eq!(rig.put(late), Err(Refusal::NoSuchSchedule));
    rig.put(ScheduleRecord { name: "archive".into(), ..other(2) }).expect("made");
    let named = |views: Vec<ScheduleView>| views.into_iter().map(|view| view.record.name).collect::<Vec<_>>();
    assert_eq!(named(rig.server.brain.schedules(None, 10)), ["archive".into(), "backup".into()] as [Arc<str>; 2]);
    assert_eq!(named(rig.server.brain.schedules(Some("archive"), 10)), ["backup".into()] as [Arc<str>; 1]);
    let by_id = schedule_id(2).to_string();
    for name in ["archive", &by_id] {
        assert_eq!(rig.server.brain.schedule(name).map(|view| view.record.id), Some(schedule_id(2)));
    }
    assert!(rig.server.brain.schedule("nothing").is_none());
}

#[test]
fn a_new_spec_keeps_what_was_done_and_counts_from_now() {
    let (mut rig, made) = Rig::scheduled(every(MINUTE));
    rig.pass(Millis::seconds(90));
    let renamed = ScheduleRecord { name: "nightly".into(), ..every(Millis::seconds(40)) };
    rig.put(renamed).expect("updated");
    let record = rig.record();
    assert_eq!((record.runs, record.created_at, record.last_job), (1, made, Some(rig.made()[0].id)));
    // In steps from the making on, the first one that is still to come.
    assert_eq!(record.next_tick, Some(made + Millis::seconds(120)));
    assert!(rig.server.brain.schedule("backup").is_none(), "the old name is free");
    rig.pass(Millis::seconds(30));
    assert_eq!(&*rig.made()[1].name, "nightly_1970-01-01_00:18:40");
}

#[test]
fn a_disabled_schedule_makes_nothing_and_what_passed_is_not_made_up_for() {
    let (mut rig, made) = Rig::scheduled(ScheduleRecord { enabled: false, ..every(MINUTE) });
    assert!(!rig.server.brain.has_work());
    rig.pass(Millis::seconds(150));
    assert_eq!((rig.made().len(), rig.record().next_tick), (0, None));
    rig.order(1, ScheduleOrder::Enable).expect("enabled");
    assert_eq!(rig.record().next_tick, Some(made + Millis::seconds(180)));
    assert!(rig.server.brain.has_work(), "a server that left would make no job");
    rig.pass(MINUTE);
    assert_eq!(rig.ticks(), [180_000]);
    rig.order(1, ScheduleOrder::Disable).expect("disabled");
    rig.pass(MINUTE);
    assert_eq!(rig.made().len(), 1);
}

#[test]
fn a_deleted_schedule_is_gone_and_its_jobs_stay() {
    let (mut rig, _) = Rig::scheduled(every(MINUTE));
    rig.pass(MINUTE);
    assert_eq!(rig.order(1, ScheduleOrder::Delete), Ok(Answer::Done));
    assert!(rig.server.store.kept.schedules.is_empty());
    let job = rig.made()[0].id;
    rig.away(MINUTE);
    assert_eq!((rig.made().len(), rig.state(job)), (1, StateKind::Pending));
    let worker = rig.worker(1, slots(1));
    assert_eq!(rig.runs(), [job]);
    rig.end_all(&[job]);
    rig.heartbeat(worker);
    rig.put(every(MINUTE)).expect("the name is free again");
}

#[test]
fn a_trigger_makes_a_job_now_and_changes_no_tick() {
    let (mut rig, made) = Rig::scheduled(every(MINUTE));
    rig.pass(Millis::seconds(10));
    let Ok(Answer::Job(job)) = rig.order(1, ScheduleOrder::Trigger) else { panic!("a job") };
    assert_eq!(rig.job(job).extra.as_ref().and_then(|extra| extra.tick), Some(made + Millis::seconds(10)));
    assert_eq!(rig.record().next_tick, Some(made + MINUTE));
    // At the very moment of a tick, and twice.
    rig.server.advance(Millis::seconds(50));
    for _ in 0..2 {
        rig.order(1, ScheduleOrder::Trigger).expect("a job");
    }
    assert_eq!(rig.ticks(), [10_000, 60_000, 60_000, 60_000]);
    // Whatever is done to the schedule at that moment, the tick came first.
    for (n, order) in [(2, ScheduleOrder::Disable), (3, ScheduleOrder::Delete)] {
        rig.server.advance(MINUTE);
        rig.order(1, order).expect("done");
        rig.settle();
        assert_eq!(rig.made().len(), 4 + n - 1);
        rig.order(1, ScheduleOrder::Enable).ok();
    }
}

#[test]
fn a_tick_is_skipped_while_the_job_before_is_not_finished() {
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { overlap: Overlap::Skip, ..every(MINUTE) });
    rig.pass(Millis::seconds(180));
    let first = rig.made()[0].id;
    assert_eq!((rig.ticks(), rig.live()), (vec![60_000], vec![first]));
    assert_eq!((rig.record().skipped, rig.record().runs), (2, 1));
    // The server forgets nothing of it.
    rig.away(Millis::ZERO);
    rig.pass(MINUTE);
    assert_eq!(rig.made().len(), 1);
    rig.cancel(first).expect("cancelled");
    assert_eq!(rig.live(), []);
    rig.pass(MINUTE);
    assert_eq!(rig.ticks(), [60_000, 300_000]);
    // A job that somebody sends into line again is not finished either.
    let last = rig.made()[1].id;
    rig.cancel(last).expect("cancelled");
    rig.retry(last).expect("in line again");
    rig.pass(MINUTE);
    assert_eq!((rig.made().len(), rig.live()), (2, vec![last]));
}

#[test]
fn a_tick_replaces_the_jobs_before() {
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { overlap: Overlap::Replace, ..every(MINUTE) });
    rig.pass(MINUTE);
    let first = rig.made()[0].id;
    rig.pass(MINUTE);
    let second = rig.made()[1].id;
    assert_eq!((rig.state(first), rig.live()), (StateKind::Cancelled, vec![second]));
    // One that runs is asked to stop, and counts until it has.
    let worker = rig.worker(1, slots(2));
    let execution = rig.start(second);
    rig.news();
    rig.pass(Millis::seconds(50));
    rig.heartbeat(worker);
    rig.pass(Millis::seconds(10));
    assert_eq!(rig.stops(), [(execution, StopReason::Cancelled)]);
    let third = rig.made()[2].id;
    assert_eq!(rig.live(), [second, third]);
    rig.finish(second, Outcome::Cancelled);
    assert_eq!((rig.state(second), rig.live()), (StateKind::Cancelled, vec![third]));
}

/// More jobs wait than are in memory, and the one that must be cancelled is behind them, also after a restart.
#[test]
fn a_tick_replaces_jobs_far_down_the_line() {
    for first in [Overlap::Replace, Overlap::Skip] {
        let mut rig = Rig::with(small_windows());
        rig.enqueue_all(vec![spec(); 40]);
        rig.put(ScheduleRecord { overlap: first, ..every(MINUTE) }).expect("made");
        rig.pass(MINUTE);
        rig.away(Millis::ZERO);
        rig.put(ScheduleRecord { overlap: Overlap::Replace, ..every(MINUTE) }).expect("updated");
        rig.pass(MINUTE);
        let made = rig.made();
        assert_eq!(
            made.iter().map(|job| job.state.kind()).collect::<Vec<_>>(),
            [StateKind::Cancelled, StateKind::Pending]
        );
        rig.order(1, ScheduleOrder::Delete).expect("deleted");
        rig.pass(Millis::seconds(2));
        assert!(!rig.server.brain.knows(made[1].id), "nothing holds it in memory any more");
    }
}

#[test]
fn one_tick_waits_for_the_job_before_and_later_ones_take_its_place() {
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { overlap: Overlap::QueueOne, ..every(MINUTE) });
    rig.pass(Millis::seconds(200));
    let first = rig.made()[0].id;
    assert_eq!((rig.ticks(), rig.record().skipped), (vec![60_000], 1));
    rig.away(Millis::ZERO);
    rig.cancel(first).expect("cancelled");
    assert_eq!((rig.ticks(), rig.record().queued), (vec![60_000, 180_000], None));
    // What waits is dropped with the schedule's leave to run.
    rig.pass(MINUTE);
    assert!(rig.record().queued.is_some());
    rig.order(1, ScheduleOrder::Disable).expect("disabled");
    rig.cancel(rig.made()[1].id).expect("cancelled");
    assert_eq!((rig.made().len(), rig.record().queued), (2, None));
}

/// The end of the job and a new spec come in one turn.
#[test]
fn a_new_spec_does_not_hold_up_the_tick_that_waits() {
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { overlap: Overlap::QueueOne, ..every(MINUTE) });
    rig.pass(Millis::seconds(130));
    let first = rig.made()[0].id;
    let (cancels, puts) = (rig.caller(), rig.caller());
    rig.server.input(Input::Cancel { caller: cancels, job: first, reason: String::new() });
    let record = Box::new(ScheduleRecord { overlap: Overlap::QueueOne, ..every(MINUTE) });
    let order = ScheduleOrder::Put { record, job: what() };
    rig.tell(Input::SetSchedule { caller: puts, schedule: schedule_id(1), order });
    assert_eq!((rig.ticks(), rig.record().queued), (vec![60_000, 120_000], None));
}

#[test]
fn missed_ticks_are_made_up_for_as_the_policy_says() {
    let policies = [
        (Misfire::Skip, vec![540_000, 600_000], 8),
        (Misfire::FireOnce, vec![480_000, 540_000, 600_000], 7),
        (Misfire::CatchUp(3), vec![360_000, 420_000, 480_000, 540_000, 600_000], 5),
        (Misfire::CatchUp(1000), (1..=10).map(|n| n * 60_000).collect(), 0),
    ];
    for (misfire, ticks, skipped) in policies {
        let (mut rig, _) = Rig::scheduled(ScheduleRecord { misfire, ..every(MINUTE) });
        rig.away(Millis::seconds(600));
        assert_eq!((rig.ticks(), rig.record().skipped), (ticks, skipped), "{misfire:?}");
        rig.pass(MINUTE);
        assert_eq!(rig.ticks().last(), Some(&660_000));
    }
    // A tick that is less than a minute late is on time.
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { misfire: Misfire::Skip, ..every(MINUTE) });
    rig.away(Millis::seconds(119));
    assert_eq!((rig.ticks(), rig.record().skipped), (vec![60_000], 0));
}

#[test]
fn a_clock_that_jumps_is_like_a_server_that_was_away_and_one_that_goes_back_repeats_nothing() {
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { misfire: Misfire::Skip, ..every(MINUTE) });
    let begun = rig.server.now.wall;
    rig.server.now.wall = begun + Millis::seconds(600);
    rig.settle();
    assert_eq!(rig.ticks(), [540_000, 600_000]);
    rig.server.now.wall = begun;
    rig.server.restart();
    rig.settle();
    rig.pass(Millis::seconds(599));
    assert_eq!(rig.ticks(), [540_000, 600_000]);
    rig.pass(Millis::seconds(61));
    assert_eq!(rig.ticks(), [540_000, 600_000, 660_000]);
}

/// A week of seconds is not looked at one by one.
#[test]
fn an_endless_row_of_missed_ticks_costs_little() {
    let cron = Timing::Cron { expression: "* * * * * *".into(), time_zone: "Europe/Madrid".into() };
    let record = ScheduleRecord { timing: cron, misfire: Misfire::CatchUp(2), ..every(MINUTE) };
    let (mut rig, _) = Rig::scheduled(record);
    let began = std::time::Instant::now();
    rig.away(Millis::seconds(7 * 24 * 3600));
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((rig.made().len(), rig.record().skipped), (2 + 61, 9998));
}

#[test]
fn a_past_range_is_filled_once() {
    let (mut rig, made) = Rig::scheduled(ScheduleRecord { overlap: Overlap::Skip, ..every(MINUTE) });
    rig.pass(MINUTE);
    let tick = |n: i64| Time(made.0 + n * 60_000);
    let ticks: Vec<Time> = (-3..=1).map(tick).collect();
    let backfill = |ticks: &[Time]| ScheduleOrder::Backfill { ticks: ticks.to_vec() };
    assert_eq!(rig.order(1, backfill(&ticks)), Ok(Answer::Count(4)), "one had its job");
    assert_eq!(rig.order(1, backfill(&ticks)), Ok(Answer::Count(0)));
    rig.away(Millis::ZERO);
    assert_eq!(rig.order(1, backfill(&ticks)), Ok(Answer::Count(0)), "not even after a restart");
    assert_eq!(rig.live().len(), 1, "what is of the past holds up no tick");
    // One that was skipped can be made up for, and one that is still to come can not.
    rig.server.advance(MINUTE);
    assert_eq!(rig.order(1, backfill(&[tick(2), tick(3)])), Ok(Answer::Count(1)));
    let record = rig.record();
    assert_eq!((record.runs, record.skipped), (1, 1), "a backfill is no run of the schedule");
    // One that is due at this moment is the schedule's own.
    rig.put(every(MINUTE)).expect("updated");
    rig.server.advance(MINUTE);
    assert_eq!(rig.order(1, backfill(&[tick(3)])), Ok(Answer::Count(0)));
    assert_eq!(rig.record().runs, 2);
}

#[test]
fn what_happens_to_a_schedule_is_told() {
    let (mut rig, _) = Rig::scheduled(ScheduleRecord { overlap: Overlap::Skip, ..every(MINUTE) });
    let mut told = Vec::new();
    let mut turn = |rig: &mut Rig| {
        rig.server.turn(false);
        for (batch, _) in &rig.server.uncommitted {
            told.extend(batch.changes.iter().filter_map(|change| match change {
                Change::Schedule { what, .. } => Some(*what),
                _ => None,
            }));
        }
        rig.settle();
    };
    for _ in 0..2 {
        rig.server.advance(MINUTE);
        turn(&mut rig);
    }
    let record = Box::new(every(MINUTE));
    let orders = [
        ScheduleOrder::Disable,
        ScheduleOrder::Enable,
        ScheduleOrder::Put { record, job: what() },
        ScheduleOrder::Delete,
    ];
    for order in orders {
        let caller = rig.caller();
        rig.server.input(Input::SetSchedule { caller, schedule: schedule_id(1), order });
        turn(&mut rig);
    }
    use ScheduleChange::*;
    assert_eq!(told, [Fired, Skipped, Disabled, Enabled, Updated, Deleted]);
}

/// The server dies at every step between a decision and its release: no tick has two jobs, none has none.
#[test]
fn a_crash_at_any_step_makes_neither_two_jobs_of_a_tick_nor_none() {
    for overlap in Overlap::ALL {
        for (at, committed) in (0..6).flat_map(|at| [(at, false), (at, true)]) {
            let mut rig = Rig::new();
            rig.put(ScheduleRecord { overlap, ..every(Millis::seconds(10)) }).expect("made");
            for n in 0..6 {
                rig.server.advance(Millis::seconds(10));
                rig.server.turn(false);
                if n != at || committed {
                    rig.server.commit();
                }
                if n == at {
                    rig.server.restart();
                }
            }
            rig.server.advance(Millis::seconds(5));
            rig.settle();
            let ticks = rig.ticks();
            let all: Vec<i64> = (1..=6).map(|n| n * 10_000).collect();
            let record = rig.record();
            match overlap {
                Overlap::Allow | Overlap::Replace => assert_eq!(ticks, all, "{overlap:?}, crash at {at}, {committed}"),
                Overlap::Skip => assert_eq!((ticks, record.skipped), (vec![10_000], 5), "crash at {at}, {committed}"),
                Overlap::QueueOne => {
                    assert_eq!((ticks, record.skipped), (vec![10_000], 4), "crash at {at}, {committed}");
                    assert_eq!(record.queued, Some(record.created_at + Millis::seconds(60)));
                }
            }
            let live = rig.made().iter().filter(|job| !job.state.kind().is_finished()).count();
            assert!(overlap == Overlap::Allow || live == record.live.len(), "{overlap:?}, crash at {at}, {committed}");
        }
    }
}

/// Those that are not due are not looked at, and many that are due at once are fired in several turns.
#[test]
fn many_schedules_cost_nothing_while_they_are_not_due() {
    const MANY: u128 = 50_000;
    let mut rig = Rig::new();
    for n in 0..MANY {
        let name = format!("s{n}").into();
        let record = Box::new(ScheduleRecord { id: schedule_id(n), name, ..every(Millis::seconds(3600)) });
        let (caller, order) = (rig.caller(), ScheduleOrder::Put { record, job: what() });
        rig.server.input(Input::SetSchedule { caller, schedule: schedule_id(n), order });
    }
    rig.settle();
    let began = std::time::Instant::now();
    for _ in 0..10_000 {
        rig.server.now.wall = rig.server.now.wall + Millis(1);
        rig.server.turn(false);
        rig.server.commit();
    }
    // A scan of them all would take a hundred times as long.
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
    rig.server.advance(Millis::seconds(3600));
    rig.server.turn(false);
    rig.server.commit();
    assert_eq!(rig.made().len(), 1000);
    assert!(rig.server.brain.next_wake().0.is_some_and(|at| at <= rig.server.now.wall), "it goes on at once");
    for _ in 1..50 {
        rig.server.turn(false);
        rig.server.commit();
    }
    assert_eq!(rig.made().len(), MANY as usize);
}
