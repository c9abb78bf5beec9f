//! How values become bytes and columns, the same in both stores.
//!
//! Records are MessagePack: maps with named fields where there are few, plain lists of fields where there are many. Either
//! is read, and to either a field can be added later: at the end, with a serde default.

use crate::{DeliveryKind, StoreError};
use hodei_core::{
    job::Job,
    spec::Priority,
    state::StateKind,
    webhook::{Delivery, DeliveryState},
    worker::{Phase, WorkerRecord},
};
use serde::{Serialize, de::DeserializeOwned};

/// No record is nested deeper; a damaged one that is would need more stack than a thread has.
const DEEPEST: usize = 64;

/// The number of a state in a database. These are in databases and in index predicates: never change one.
pub const fn state_number(kind: StateKind) -> i16 {
    match kind {
        StateKind::Delayed => 0,
        StateKind::Pending => 1,
        StateKind::Scheduled => 2,
        StateKind::Running => 3,
        StateKind::Succeeded => 4,
        StateKind::Failed => 5,
        StateKind::TimedOut => 6,
        StateKind::Cancelled => 7,
        StateKind::Waiting => 8,
        StateKind::Blocked => 9,
    }
}

pub fn state_of(number: i16) -> Result<StateKind, StoreError> {
    StateKind::ALL
        .into_iter()
        .find(|kind| state_number(*kind) == number)
        .ok_or_else(|| StoreError::Broken(format!("no state has the number {number}")))
}

/// The number of a priority in a database, the most urgent first. Never change one.
pub const fn priority_number(priority: Priority) -> i16 {
    match priority {
        Priority::Critical => 0,
        Priority::High => 1,
        Priority::Normal => 2,
        Priority::Low => 3,
    }
}

pub fn priority_of(number: i16) -> Result<Priority, StoreError> {
    Priority::ALL
        .into_iter()
        .find(|priority| priority_number(*priority) == number)
        .ok_or_else(|| StoreError::Broken(format!("no priority has the number {number}")))
}

/// The columns of a job that indexes need; the rest is in its record.
pub struct JobColumns<'a> {
    pub id: &'a [u8; 16],
    pub state: i16,
    pub queue: &'a str,
    pub priority: i16,
    pub seq: i64,
    pub due_at: Option<i64>,
    pub created_at: i64,
}

impl<'a> JobColumns<'a> {
    pub fn of(job: &'a Job) -> Self {
        Self {
            id: job.id.as_bytes(),
            state: state_number(job.state.kind()),
            queue: &job.queue,
            priority: priority_number(job.priority),
            seq: signed(job.seq),
            due_at: due_at(job),
            created_at: job.created_at.0,
        }
    }
}

/// Only jobs that wait are woken from the store; timers of running ones are kept by whoever loads them.
fn due_at(job: &Job) -> Option<i64> {
    match job.state.kind() {
        StateKind::Delayed | StateKind::Pending => job.due_at().map(|time| time.0),
        _ => None,
    }
}

/// The number of a delivery's state in a database. Never change one.
pub const fn delivery_number(kind: DeliveryKind) -> i16 {
    match kind {
        DeliveryKind::Pending => 0,
        DeliveryKind::Delivered => 1,
        DeliveryKind::Failed => 2,
    }
}

pub fn delivery_kind(delivery: &Delivery) -> DeliveryKind {
    match delivery.state {
        DeliveryState::Pending { .. } => DeliveryKind::Pending,
        DeliveryState::Delivered { .. } => DeliveryKind::Delivered,
        DeliveryState::Failed { .. } => DeliveryKind::Failed,
    }
}

pub fn is_terminated(worker: &WorkerRecord) -> bool {
    worker.phase == Phase::Terminated
}

/// Databases have no unsigned numbers; what does not fit stays the largest.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Appends the record of `value` to `buffer`, which its caller reuses.
pub fn encode(value: &impl Serialize, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    rmp_serde::encode::write_named(buffer, value)
        .map_err(|error| StoreError::Broken(format!("a record cannot be encoded: {error}")))
}

/// The same without the names of fields: half the bytes, for what is written most. No field may be left out of it.
pub fn encode_compact(value: &impl Serialize, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    rmp_serde::encode::write(buffer, value)
        .map_err(|error| StoreError::Broken(format!("a record cannot be encoded: {error}")))
}

pub fn decode<T: DeserializeOwned>(record: &[u8]) -> Result<T, StoreError> {
    let mut record = rmp_serde::Deserializer::from_read_ref(record);
    record.set_max_depth(DEEPEST);
    T::deserialize(&mut record).map_err(|error| StoreError::Broken(format!("a record cannot be decoded: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodei_core::{
        id::JobId,
        spec::{JobSpec, Work},
        state::State,
        time::Time,
    };

    #[test]
    fn jobs_are_read_with_and_without_names() {
        let spec = JobSpec::new("job", Work::Task { task_type: "t".into(), payload: vec![] });
        let job = Job::new(JobId::NIL, &spec, State::Pending { since: Time(5) }, 7, Time(1));
        let (mut named, mut compact) = (Vec::new(), Vec::new());
        encode(&job, &mut named).expect("a record");
        encode_compact(&job, &mut compact).expect("a record");
        assert!(compact.len() * 2 < named.len());
        assert_eq!(decode::<Job>(&named).expect("a job"), job);
        assert_eq!(decode::<Job>(&compact).expect("a job"), job);
    }

    /// These numbers are in databases.
    #[test]
    fn numbers_never_change() {
        assert_eq!(StateKind::ALL.map(state_number), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(Priority::ALL.map(priority_number), [0, 1, 2, 3]);
        assert_eq!(priority_of(2).ok(), Some(Priority::Normal));
        assert!(priority_of(4).is_err());
        assert_eq!(state_of(9).ok(), Some(StateKind::Blocked));
        assert!(state_of(10).is_err());
        let deliveries = [DeliveryKind::Pending, DeliveryKind::Delivered, DeliveryKind::Failed];
        assert_eq!(deliveries.map(delivery_number), [0, 1, 2]);
    }
}
