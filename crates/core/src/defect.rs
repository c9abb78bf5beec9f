//! Mistakes that a simulation can plant in this crate, to prove that it would notice them.
//!
//! Without the feature `defects`, which only the simulation turns on, [`planted`] is a constant and nothing of this is
//! left in the program.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A report is believed although its execution is not the job's current one.
    NoFencing,
    /// The worker counts its lease from the moment the answer arrives.
    LeaseFromReceipt,
    /// What was under way when a stream broke is not sent again on the next.
    NotSentAgain,
    /// What a worker holds is given to others as soon as its stream breaks.
    LeaseIgnored,
    /// A lease that was parked before a restart is not waited for.
    ParkForgotten,
    /// An attempt that follows a failed one is not counted.
    RetryNotCounted,
    /// A job whose worker was lost has not lost a worker.
    LossNotCounted,
    /// The least urgent job of a class goes first.
    PriorityIgnored,
    /// An ended execution keeps its slot.
    SlotNotReleased,
    /// The end of an old stream is taken for the end of the current one.
    OldStreamBelieved,
    /// The job of a tick is written without the schedule that is past it.
    ScheduleNotWritten,
    /// A schedule goes on from now rather than from its tick.
    NextTickFromNow,
    /// What a line has beyond its window is forgotten after the first page.
    LineForgotten,
    /// A page is taken in whatever it does not show yet of what changed beyond the window.
    OldPageBelieved,
    /// A job is released when the first of those it depends on has succeeded.
    ReleasedEarly,
    /// After a restart nobody goes on telling an end that was being told.
    TellingForgotten,
    /// A retried job waits for one that nobody keeps any more.
    ForgottenAwaited,
    /// After a restart jobs with workers do not count against the limits of their keys.
    KeyForgotten,
    /// A start does not count against the rate of its queue.
    StartNotCounted,
    /// After a restart no queue is paused.
    PauseForgotten,
    /// What a queue held while it was paused is not let go when it is resumed.
    ResumeForgotten,
    /// A job that blocks has used an attempt.
    BlockCounted,
    /// A job that blocks waits for nothing.
    BlockIgnored,
    /// Taints keep nothing off.
    TaintIgnored,
    /// What did not fit once is not looked at again.
    RoomOverlooked,
    /// A closed fleet rejects what only waits for room.
    RejectedWhenBusy,
    /// A worker for one job is not known to have had it after a restart.
    UseForgotten,
    /// A place in a warm pool is filled again however often it failed.
    RestartBudgetIgnored,
    /// After a restart of the server a warm pool has all its restarts again.
    RestartsForgotten,
    /// What a provider has and nobody knows is left alone.
    LeftoverIgnored,
}

#[cfg(feature = "defects")]
mod chosen {
    use super::Defect;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Option<Defect>> = const { Cell::new(None) };
    }

    /// Plants a defect, or none, in all that this thread does from now on.
    pub fn plant(defect: Option<Defect>) {
        CHOSEN.set(defect);
    }

    pub fn planted(defect: Defect) -> bool {
        CHOSEN.get() == Some(defect)
    }
}

#[cfg(feature = "defects")]
pub use chosen::{plant, planted};

/// Whether this defect is to be acted out.
#[cfg(not(feature = "defects"))]
pub const fn planted(_: Defect) -> bool {
    false
}
