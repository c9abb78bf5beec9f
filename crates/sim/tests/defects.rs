//! Every defect that can be planted is found, soon and by the rule it breaks, and is told in a short history.

use clap::ValueEnum;
use hodei_sim::{Defect, Plan, Rule, report, run, run_many};
use std::{
    thread::available_parallelism,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(60);

/// Looks for a defect as a person would: seed after seed, until one fails.
fn is_found(defect: Defect, rules: &[Rule]) {
    let (began, threads) = (Instant::now(), available_parallelism().map_or(1, |threads| threads.get()));
    let (tally, failure) = run_many(0, threads, Some(defect), |_, _| began.elapsed() > SOON);
    let failure = failure.unwrap_or_else(|| panic!("{defect:?} was not found within a minute"));
    println!("{defect:?}: found by seed {} ({} steps) in {:?}", failure.seed, tally.steps, began.elapsed());
    assert!(rules.contains(&failure.rule()), "{defect:?} broke another rule: {}", failure.headline());
    // It is the defect that breaks the rule, not the seed.
    if let Err(failure) = run(&Plan::of(failure.seed), None, false) {
        panic!("without any defect: {}", failure.headline());
    }
}

macro_rules! found {
    ($($name:ident: $defect:ident breaks $($rule:ident)|+;)+) => {
        $(#[test] fn $name() { is_found(Defect::$defect, &[$(Rule::$rule),+]); })+

        #[test]
        fn each_defect_has_a_test() {
            let tested = [$(Defect::$defect),+];
            assert!(Defect::value_variants().iter().all(|defect| tested.contains(defect)));
        }
    };
}

found! {
    an_effect_before_its_commit: EffectBeforeCommit breaks NothingAcknowledgedIsLost;
    lines_acknowledged_before_their_commit: LogAckBeforeCommit breaks NothingAcknowledgedIsLost;
    a_failed_commit_that_is_not_repeated: CommitNotRepeated breaks NothingAcknowledgedIsLost | StoreAndMemoryAgree;
    a_repeated_commit_that_counts_twice: CommitAppliedTwice breaks LogsAreWhole;
    a_timer_lost_at_a_restart: TimerLostAtRestart breaks EverythingComesUp;
    a_placement_that_is_forgotten:
        PlacementForgotten breaks SlotsAndLimits | OneLiveRun | NothingAcknowledgedIsLost | StoreAndMemoryAgree;
    a_dropped_spool: SpoolDropped breaks NothingAcknowledgedIsLost;
    a_guardian_that_ignores_the_lease: GuardianIgnoresLease breaks OneLiveRun;
    a_guardian_that_outlives_its_agent: GuardianIgnoresDeath breaks OneLiveRun | NothingAcknowledgedIsLost;
    results_without_fencing: NoFencing breaks OneResult | LegalTransitions | Assertion;
    a_lease_counted_from_its_receipt: LeaseFromReceipt breaks OneLiveRun;
    records_that_are_not_sent_again: NotSentAgain breaks EverythingFinishes;
    a_lease_that_the_server_ignores: LeaseIgnored breaks OneLiveRun;
    a_parked_lease_that_is_forgotten: ParkForgotten breaks OneLiveRun;
    a_retry_that_is_not_counted: RetryNotCounted breaks AttemptsAreCounted;
    a_loss_that_is_not_counted: LossNotCounted breaks AttemptsAreCounted;
    a_priority_that_is_ignored: PriorityIgnored breaks StrictOrder;
    a_slot_that_is_not_released: SlotNotReleased breaks SlotsAndLimits;
    an_old_stream_that_is_believed: OldStreamBelieved breaks EverythingFinishes | EveryWaitHasAReason;
    a_line_that_is_forgotten: LineForgotten breaks EverythingComesUp | EveryWaitHasAReason;
    an_old_page_that_is_believed: OldPageBelieved breaks EverythingComesUp | EveryWaitHasAReason;
    a_tick_without_its_schedule: ScheduleNotWritten breaks OneJobPerTick | OverlapPolicy;
    a_schedule_that_goes_on_from_now: NextTickFromNow breaks OneJobPerTick;
    a_job_that_is_released_early: ReleasedEarly breaks DependenciesHold;
    a_wait_for_what_is_forgotten: ForgottenAwaited breaks DependenciesHold;
    an_end_that_nobody_goes_on_telling: TellingForgotten breaks DependenciesHold | EverythingFinishes;
    a_key_that_is_forgotten: KeyForgotten breaks SlotsAndLimits | EveryWaitHasAReason;
    a_start_that_does_not_count: StartNotCounted breaks SlotsAndLimits;
    a_pause_that_is_forgotten: PauseForgotten breaks PausesHold | EveryWaitHasAReason;
    a_resume_that_lets_nothing_go: ResumeForgotten breaks EveryWaitHasAReason | StrictOrder;
    a_block_that_counts: BlockCounted breaks AttemptsAreCounted;
    a_block_that_waits_for_nothing: BlockIgnored breaks BlockedUntilResumed;
    a_taint_that_keeps_nothing_off: TaintIgnored breaks SlotsAndLimits;
    room_that_is_overlooked: RoomOverlooked breaks EveryWaitHasAReason | StrictOrder;
    a_job_that_is_rejected_while_it_waits: RejectedWhenBusy breaks RejectedOnlyWhenHopeless;
    a_use_that_is_forgotten: UseForgotten breaks OneJobAWorker;
    a_restart_beyond_the_budget: RestartBudgetIgnored breaks RestartBudget;
    restarts_that_are_forgotten: RestartsForgotten breaks RestartBudget;
    a_leftover_that_is_ignored: LeftoverIgnored breaks NoWorkerLeaked;
}

/// A failure is told in few words: what was planned, and what then happened to the job.
#[test]
fn a_failure_is_shrunk_and_told() {
    let defect = Some(Defect::RetryNotCounted);
    let (_, failure) = run_many(0, 1, defect, |_, seeds| seeds > 50);
    let failure = failure.expect("it is found");
    let told = report(&failure, defect);
    assert!(told.contains(&format!("replay: cargo xtask sim --from {} --seeds 1", failure.seed)), "{told}");
    assert!(told.contains("has 1 planned events on 1 workers"), "{told}");
    assert!(told.contains("starts run"), "{told}");
}
