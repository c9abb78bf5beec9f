//! The mistakes that can be planted, each of which the simulation must find.

use hodei_core::defect::Defect as InCore;

/// One mistake, in the brain, in the session, or in what the simulation itself plays: loop, disk, guardian and spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Defect {
    /// Answers and assignments leave before their rows are durable.
    EffectBeforeCommit,
    /// Log lines are acknowledged before they are durable.
    LogAckBeforeCommit,
    /// A commit that failed is taken for done.
    CommitNotRepeated,
    /// A repeated commit is not recognised, and its log lines are stored again.
    CommitAppliedTwice,
    /// A page of timers leaves one out after a restart.
    TimerLostAtRestart,
    /// A new leader does not read what was placed without a write of the row.
    PlacementForgotten,
    /// A new agent begins with an empty spool.
    SpoolDropped,
    /// The guardian lets jobs run on when the lease ends.
    GuardianIgnoresLease,
    /// The guardian lets jobs run on when the agent dies.
    GuardianIgnoresDeath,
    NoFencing,
    LeaseFromReceipt,
    NotSentAgain,
    LeaseIgnored,
    ParkForgotten,
    RetryNotCounted,
    LossNotCounted,
    PriorityIgnored,
    SlotNotReleased,
    OldStreamBelieved,
    LineForgotten,
    OldPageBelieved,
    ScheduleNotWritten,
    NextTickFromNow,
    ReleasedEarly,
    TellingForgotten,
    ForgottenAwaited,
    KeyForgotten,
    StartNotCounted,
    PauseForgotten,
    ResumeForgotten,
    BlockCounted,
    BlockIgnored,
    TaintIgnored,
    RoomOverlooked,
    RejectedWhenBusy,
    UseForgotten,
    RestartBudgetIgnored,
    RestartsForgotten,
    LeftoverIgnored,
}

impl Defect {
    /// The same defect under the name that the core has for it, if it is planted there.
    pub fn in_core(self) -> Option<InCore> {
        match self {
            Defect::NoFencing => Some(InCore::NoFencing),
            Defect::LeaseFromReceipt => Some(InCore::LeaseFromReceipt),
            Defect::NotSentAgain => Some(InCore::NotSentAgain),
            Defect::LeaseIgnored => Some(InCore::LeaseIgnored),
            Defect::ParkForgotten => Some(InCore::ParkForgotten),
            Defect::RetryNotCounted => Some(InCore::RetryNotCounted),
            Defect::LossNotCounted => Some(InCore::LossNotCounted),
            Defect::PriorityIgnored => Some(InCore::PriorityIgnored),
            Defect::SlotNotReleased => Some(InCore::SlotNotReleased),
            Defect::OldStreamBelieved => Some(InCore::OldStreamBelieved),
            Defect::LineForgotten => Some(InCore::LineForgotten),
            Defect::OldPageBelieved => Some(InCore::OldPageBelieved),
            Defect::ScheduleNotWritten => Some(InCore::ScheduleNotWritten),
            Defect::NextTickFromNow => Some(InCore::NextTickFromNow),
            Defect::ReleasedEarly => Some(InCore::ReleasedEarly),
            Defect::TellingForgotten => Some(InCore::TellingForgotten),
            Defect::ForgottenAwaited => Some(InCore::ForgottenAwaited),
            Defect::KeyForgotten => Some(InCore::KeyForgotten),
            Defect::StartNotCounted => Some(InCore::StartNotCounted),
            Defect::PauseForgotten => Some(InCore::PauseForgotten),
            Defect::ResumeForgotten => Some(InCore::ResumeForgotten),
            Defect::BlockCounted => Some(InCore::BlockCounted),
            Defect::BlockIgnored => Some(InCore::BlockIgnored),
            Defect::TaintIgnored => Some(InCore::TaintIgnored),
            Defect::RoomOverlooked => Some(InCore::RoomOverlooked),
            Defect::RejectedWhenBusy => Some(InCore::RejectedWhenBusy),
            Defect::UseForgotten => Some(InCore::UseForgotten),
            Defect::RestartBudgetIgnored => Some(InCore::RestartBudgetIgnored),
            Defect::RestartsForgotten => Some(InCore::RestartsForgotten),
            Defect::LeftoverIgnored => Some(InCore::LeftoverIgnored),
            Defect::EffectBeforeCommit
            | Defect::LogAckBeforeCommit
            | Defect::CommitNotRepeated
            | Defect::CommitAppliedTwice
            | Defect::TimerLostAtRestart
            | Defect::PlacementForgotten
            | Defect::SpoolDropped
            | Defect::GuardianIgnoresLease
            | Defect::GuardianIgnoresDeath => None,
        }
    }
}
