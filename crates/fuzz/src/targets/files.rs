//! What is read back from disks and sockets on the same machine: log chunks, stored rows, spools, the guardian's frames.

use crate::{
    engine::{Target, Trace},
    mutate::varint,
    proto::{Schema, Words, chunk},
    rng::Rng,
};
use hodei_api::{
    convert,
    logs::{Chunk, Encoder},
};
use hodei_core::{
    id::{ExecutionId, Incarnation, JobId, WorkerId},
    job::{Execution, Job, Progress},
    spec::{JobSpec, Secret, Work},
    state::{Cancel, DelayReason, Failure, FailureKind, Outcome, Run, State},
    time::{Millis, Time},
    token::{Hash, WorkerToken},
    worker::{Capacity, Phase, WorkerInfo, WorkerRecord},
};
use hodei_worker::fuzzing;
use std::{collections::BTreeMap, fs};
use tempfile::TempDir;
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(5);

/// A chunk: the number of its entries in four bytes, then its data.
pub struct Logs;

impl Target for Logs {
    fn name(&self) -> &'static str {
        "logs"
    }

    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        (0..30).map(|_| with_count(chunk(rng))).collect()
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        let (data, count) = match rng.below(3) {
            0 => chunk(rng),
            1 => {
                // Packed, and a length that lies.
                let length = rng.odd() as u32;
                let block = [&[0x1f, 0, 1, 0][..], &vec![0xff; rng.below(2000)], &[0, 0]].concat();
                ([&[1][..], &length.to_le_bytes(), &block].concat(), rng.odd() as u32)
            }
            _ => {
                let mut plain = vec![0];
                let most = if rng.once_in(50) { 30_000 } else { 10 };
                let entries = rng.below(most);
                for _ in 0..entries {
                    plain.push(rng.number() as u8 & 3);
                    plain.extend(varint(if rng.once_in(4) { rng.odd() } else { 1 }));
                    let text = rng.below(5);
                    plain.extend(varint(if rng.once_in(200) { rng.odd() } else { text as u64 }));
                    plain.extend(rng.bytes(text));
                }
                (plain, entries as u32)
            }
        };
        with_count((data, count))
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let Some((count, data)) = input.split_first_chunk::<4>() else { return };
        let count = u32::from_le_bytes(*count);
        match Chunk::decode(data, count) {
            Ok(chunk) => {
                trace.accepted();
                let entries: Vec<_> = chunk.entries().collect();
                assert_eq!(entries.len(), count as usize);
                let mut encoder = Encoder::default();
                entries.iter().for_each(|entry| encoder.push(*entry));
                let (data, count) = encoder.finish();
                let again = Chunk::decode(&data, count);
                assert!(again.is_ok_and(|again| again.entries().eq(entries.iter().copied())), "it is the same again");
            }
            Err(bad) => trace.refused(&bad),
        }
    }

    fn memory(&self, length: usize) -> usize {
        // An honest chunk unpacks to 200 KiB, of which every three bytes may be an entry.
        (6 << 20) + 4 * length
    }
}

fn with_count((data, count): (Vec<u8>, u32)) -> Vec<u8> {
    [&count.to_le_bytes()[..], &data].concat()
}

/// Rows of the store: the first byte chooses the kind.
pub struct Records;

impl Target for Records {
    fn name(&self) -> &'static str {
        "records"
    }

    fn seeds(&self, _: &mut Rng) -> Vec<Vec<u8>> {
        records(&mut || 7)
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.once_in(2) {
            let records = records(&mut || rng.odd());
            return rng.pick(&records).cloned().unwrap_or_default();
        }
        // MessagePack at random: containers and strings whose lengths lie.
        let mut bytes = vec![rng.below(4) as u8];
        for _ in 0..rng.below(40) {
            let marker = match rng.below(4) {
                0 => rng.number() as u8,
                1 => 0x80 | rng.below(4) as u8,
                2 => 0x90 | rng.below(4) as u8,
                _ => 0xc0 | rng.below(32) as u8,
            };
            bytes.push(marker);
            let length = rng.below(6);
            bytes.extend_from_slice(&rng.odd().to_be_bytes()[..length]);
            if rng.once_in(4) {
                let name = *rng.pick(&["id", "state", "retry", "executions", "stdin", "Running"]).unwrap_or(&"");
                bytes.push(0xa0 | name.len() as u8);
                bytes.extend_from_slice(name.as_bytes());
            }
        }
        if rng.once_in(30) {
            // Nested as deep as it goes.
            bytes.extend(vec![0x91; rng.below(100_000)]);
        }
        bytes
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let Some((kind, record)) = input.split_first() else { return };
        let read = match kind % 4 {
            0 => hodei_store::decode::<Job>(record).map(|job| {
                _ = (job.due_at(), job.class(), job.current(), job.last_failure(), job.started_at());
                _ = convert::job_to_wire(&job, convert::Stored::default(), String::new());
            }),
            1 => hodei_store::decode::<JobSpec>(record).map(|spec| {
                _ = spec.validate(&hodei_core::spec::Limits::default());
                _ = convert::spec_to_wire(&spec, false);
            }),
            2 => hodei_store::decode::<WorkerRecord>(record).map(|worker| drop(convert::info_to_wire(&worker.info))),
            _ => hodei_store::decode::<WorkerToken>(record)
                .map(|mut token| _ = token.redeem(None, Hash([0; 32]), Time(0))),
        };
        match read {
            Ok(()) => trace.accepted(),
            Err(error) => trace.refused(&error),
        }
    }
}

fn record(kind: u8, value: &impl serde::Serialize) -> Vec<u8> {
    let mut record = vec![kind];
    _ = hodei_store::encode(value, &mut record);
    record
}

/// A row of every kind and a job in every state, with these numbers in them.
fn records(number: &mut dyn FnMut() -> u64) -> Vec<Vec<u8>> {
    let mut records = vec![record(1, &spec(number)), record(2, &worker(number)), record(3, &token(number))];
    for state in states(number) {
        records.push(record(0, &Job { state, ..job(number) }));
    }
    records
}

fn time(number: &mut dyn FnMut() -> u64) -> Time {
    Time(number() as i64)
}

fn token(number: &mut dyn FnMut() -> u64) -> WorkerToken {
    WorkerToken { hash: Hash([1; 32]), worker: WorkerId(ID), expires_at: time(number), used_by: None }
}

fn worker(number: &mut dyn FnMut() -> u64) -> WorkerRecord {
    let capacity =
        Capacity { slots: number() as u32, cpu_millis: number(), memory_bytes: number(), ..Capacity::default() };
    WorkerRecord {
        id: WorkerId(ID),
        info: WorkerInfo { name: "a".into(), capacity, ..WorkerInfo::default() },
        session: Some(Hash([2; 32])),
        incarnation: Some(Incarnation(ID)),
        phase: Phase::Draining,
        registered_at: time(number),
        origin: None,
        drain: None,
        leaving: None,
        history: BTreeMap::new(),
    }
}

fn spec(number: &mut dyn FnMut() -> u64) -> JobSpec {
    let mut spec = JobSpec::new("job", Work::Script { interpreter: "sh".into(), content: "true".into() });
    spec.environment.insert("A".into(), "b".into());
    spec.secrets.insert("S".into(), Secret("secret".into()));
    (spec.stdin, spec.run_at) = (vec![1, 2, 3], Some(time(number)));
    spec.working_directory = Some("/tmp".into());
    (spec.timeouts.run, spec.timeouts.queue) = (Some(Millis(number())), Some(Millis(number())));
    (spec.retry.delay, spec.retry.max_attempts) = (Millis(number()), number() as u32);
    spec.retry.fatal_exit_codes = vec![1, -1];
    spec.retry.fatal_kinds = vec![FailureKind::NotFound];
    spec
}

fn job(number: &mut dyn FnMut() -> u64) -> Job {
    let mut job = Job::new(JobId(ID), &spec(number), State::Pending { since: Time(1) }, number(), time(number));
    (job.attempt, job.losses) = (number() as u32, number() as u32);
    let outcomes = [Outcome::Succeeded, Outcome::Failed(Failure::exit(3)), Outcome::Cancelled, Outcome::Released];
    job.executions = outcomes
        .map(|outcome| Execution {
            id: ExecutionId(ID),
            worker: WorkerId(ID),
            attempt: number() as u32,
            assigned_at: time(number),
            started_at: Some(time(number)),
            finished_at: Some(time(number)),
            outcome: Some(outcome),
            progress: Some(Progress { basis_points: number() as u16, message: "half".into() }),
            log_entries: number(),
        })
        .into();
    job
}

fn states(number: &mut dyn FnMut() -> u64) -> [State; 8] {
    let (at, since) = (time(number), time(number));
    let run = Run { execution: ExecutionId(ID), worker: WorkerId(ID) };
    let cancel = Cancel { reason: "why".into(), at };
    [
        State::Delayed { until: at, reason: DelayReason::Retry },
        State::Pending { since },
        State::Scheduled { run, since, cancel: None },
        State::Running { run, since, cancel: Some(cancel.clone()) },
        State::Succeeded { at },
        State::Failed { at },
        State::TimedOut { at },
        State::Cancelled { at, cancel },
    ]
}

/// A segment of a worker's spool: records of a length, a number and an event.
pub struct Spool {
    folder: Option<TempDir>,
    schema: Schema,
    words: Words,
}

impl Spool {
    pub fn new() -> Self {
        // In memory where there is such a place: nothing of this needs a disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).ok();
        Self {
            folder,
            schema: Schema::new(),
            words: Words { ids: (1..4).map(Uuid::from_u128).collect(), ..Words::default() },
        }
    }

    fn record(&self, number: u64, event: &[u8]) -> Vec<u8> {
        let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
        [&length.to_le_bytes()[..], &number.to_le_bytes(), event].concat()
    }
}

impl Target for Spool {
    fn name(&self) -> &'static str {
        "spool"
    }

    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let events = self.schema.good(".hodei.v1.WorkerEvent", &self.words, rng);
        let whole = events.iter().zip(1..).flat_map(|(event, number)| self.record(number, event)).collect();
        let mut seeds: Vec<_> = events.iter().map(|event| self.record(1, event)).collect();
        seeds.push(whole);
        seeds
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        let mut segment = Vec::new();
        for number in 1..2 + rng.below(6) as u64 {
            let event = self.schema.wild(".hodei.v1.WorkerEvent", &self.words, rng);
            let number = if rng.once_in(8) { rng.odd() } else { number };
            segment.extend(self.record(number, &event));
        }
        segment
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let Some(folder) = &self.folder else { return };
        let folder = folder.path().join("spool");
        _ = fs::remove_dir_all(&folder);
        if fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("0000000001"), input)).is_err() {
            return;
        }
        match fuzzing::use_spool(&folder) {
            Ok(0) => trace.say("nothing"),
            Ok(_) => trace.accepted(),
            Err(error) => trace.refused(&error),
        }
    }
}

/// A packet between an agent and its guardian, as the guardian and the agent read it: the first byte chooses the type.
pub struct Guardian;

impl Target for Guardian {
    fn name(&self) -> &'static str {
        "guardian"
    }

    fn seeds(&self, _: &mut Rng) -> Vec<Vec<u8>> {
        fuzzing::packets(|| 7)
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.once_in(2) {
            let packets = fuzzing::packets(|| rng.odd());
            return rng.pick(&packets).cloned().unwrap_or_default();
        }
        let mut packet = vec![rng.below(4) as u8, rng.below(2) as u8];
        let rest = Records.generate(rng);
        packet.extend_from_slice(&rest[1..rest.len().min(40 << 10)]);
        packet
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        match fuzzing::read_packet(input) {
            Ok(true) => trace.accepted(),
            Ok(false) => trace.say("nothing"),
            Err(error) => trace.refused(&error),
        }
    }
}
