//! What the worker reads back from its own disk and sockets, as fuzzing reaches it.

use crate::{
    guardian::message::{self, Control, INLINE, Init, Limits, Mechanism, Ready, Report, Start, StartError},
    spool::Spool,
};
use hodei_core::{
    id::{ExecutionId, Incarnation, WorkerId},
    session::{Action, Session},
    time::{Elapsed, Time},
    worker::{Capacity, WorkerInfo},
};
use rustix::fd::AsFd;
use serde::{Serialize, de::DeserializeOwned};
use std::{io, path::Path};

fn one_slot() -> WorkerInfo {
    WorkerInfo { capacity: Capacity { slots: 1, ..Capacity::default() }, ..WorkerInfo::default() }
}

/// Opens a spool that something else may have written in, uses it as an agent does, and says how many records it had.
pub fn use_spool(folder: &Path) -> io::Result<usize> {
    let (mut spool, records) = Spool::open(folder, Time(1))?;
    let found = records.len();
    let mut session = Session::new(Incarnation::NIL, one_slot(), records.clone());
    session.connected(Elapsed(0));
    for action in session.take_actions() {
        if let Action::Forget(id) = action {
            spool.forget(id);
        }
    }
    for record in &records {
        spool.read(record.id)?;
    }
    for record in &records {
        spool.forget(record.id);
    }
    spool.flush()?;
    Ok(found)
}

/// One packet of every kind with these numbers in it, each behind the number of its type.
pub fn packets(mut number: impl FnMut() -> u64) -> Vec<Vec<u8>> {
    let (worker, execution) = (WorkerId::NIL, ExecutionId::NIL);
    let init = Init { worker, pids_limit: number() as u32, scratch: "/tmp".into(), mechanism: Some(Mechanism::None) };
    let start = Start {
        execution,
        program: "/bin/true".into(),
        args: vec!["true".into(), "a".into()],
        environment: vec![("A".into(), "b".into())],
        directory: "/".into(),
        limits: Limits { cpu_millis: number(), memory_bytes: number() },
        stdin: true,
        deadline_ms: Some(number()),
    };
    vec![
        packet(0, &Control::Init(init)),
        packet(0, &Control::Attach { slot: number() as u32 }),
        packet(0, &Control::Lease { deadline_ms: number() }),
        packet(0, &Control::Stop { slot: number() as u32, execution, grace_ms: number() }),
        packet(1, &start),
        packet(2, &Report::Started { at: Time(number() as i64) }),
        packet(2, &Report::NotStarted(StartError::Spawn { errno: number() as i32 })),
        packet(2, &Report::NotStarted(StartError::Lease)),
        packet(3, &Ready(message::Isolation { mechanism: Mechanism::CgroupV2, limits: vec![message::Limit::Cpu] })),
    ]
}

fn packet(kind: u8, message: &impl Serialize) -> Vec<u8> {
    let mut packet = vec![kind, 0];
    _ = rmp_serde::encode::write(&mut packet, message);
    packet
}

/// Sends a packet through a socket and reads it as the type that its first byte names.
pub fn read_packet(input: &[u8]) -> io::Result<bool> {
    match input.split_first() {
        Some((kind, packet)) if packet.len() <= INLINE => match kind % 4 {
            0 => through::<Control>(packet),
            1 => through::<Start>(packet),
            2 => through::<Report>(packet),
            _ => through::<Ready>(packet),
        },
        _ => Ok(false),
    }
}

fn through<T: DeserializeOwned>(packet: &[u8]) -> io::Result<bool> {
    let (ours, theirs) = message::socket_pair()?;
    message::send_packet(ours.as_fd(), packet, &[])?;
    Ok(message::receive::<T>(&theirs, &mut [0; INLINE])?.is_some())
}
