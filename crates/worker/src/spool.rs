//! Results and log chunks that the server has not acknowledged, on disk: they outlive a lost connection and the agent.
//!
//! Records are appended to segment files. A segment is removed when nothing in it is owed any more. Nothing is synced:
//! after a crash of the whole machine the lease has run out and the jobs run again anyway.

use hodei_api::{convert, v1};
use hodei_core::{
    id::{ExecutionId, IdMap},
    protocol::{Finished, FromWorker, LogChunk},
    session::{Record, RecordId, RecordKind},
    state::{Failure, FailureKind, Outcome},
    time::Time,
};
use prost::Message;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const SEGMENT_BYTES: u64 = 8 << 20;
/// Length and record number, in front of each record.
const HEADER: usize = 12;
/// No record is larger; what claims to be was torn.
const MAX_RECORD: usize = 4 << 20;

/// No record and no segment gets so far; a number that says so was torn, and counting on from it would overflow.
const MAX_NUMBER: u64 = u64::MAX / 2;

#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    segments: BTreeMap<u64, Segment>,
    places: IdMap<RecordId, Place>,
    next: u64,
    /// Appended, not written yet.
    buffer: Vec<u8>,
}

/// What can be spooled.
#[derive(Debug)]
pub enum Entry {
    Logs(LogChunk),
    Finished(Finished),
}

#[derive(Debug)]
struct Segment {
    file: File,
    path: PathBuf,
    length: u64,
    owed: usize,
}

#[derive(Debug)]
struct Place {
    segment: u64,
    at: u64,
    length: usize,
    /// What it takes from the budget of unacknowledged log data.
    log_bytes: usize,
}

impl Spool {
    /// Opens the spool and finds what an earlier life left in it. An execution that has a log but no end was running
    /// when that life ended: its log is delivered, and an end that says so.
    pub fn open(folder: &Path, now: Time) -> io::Result<(Self, Vec<Record>)> {
        fs::create_dir_all(folder)?;
        let mut spool = Self {
            folder: folder.to_owned(),
            segments: BTreeMap::new(),
            places: IdMap::default(),
            next: 1,
            buffer: Vec::new(),
        };
        let mut records = spool.recover()?;
        spool.begin_segment()?;
        for (execution, log_entries) in unended(&records) {
            let failure = Failure::new(FailureKind::WorkerLost, "its worker agent died");
            let outcome = Outcome::Failed(failure);
            let end = Finished { log_entries, ..Finished::new(execution, outcome, now) };
            records.push(spool.append(Entry::Finished(end)));
        }
        spool.flush()?;
        Ok((spool, records))
    }

    /// Takes a log chunk or a result. It is safe after the next [`Spool::flush`].
    pub fn append(&mut self, entry: Entry) -> Record {
        let (execution, kind, log_bytes, message) = match entry {
            Entry::Logs(chunk) => {
                let kind = RecordKind::Logs { end: chunk.end() };
                (chunk.execution, kind, chunk.data.len(), FromWorker::Logs(chunk))
            }
            Entry::Finished(finished) => (finished.execution, RecordKind::Finished, 0, FromWorker::Finished(finished)),
        };
        let id = RecordId(self.next);
        self.next += 1;
        let event = v1::WorkerEvent { kind: Some(convert::to_server(message)) };
        let length = event.encoded_len();
        let (segment, written) = self.segments.last_key_value().map_or((0, 0), |(n, segment)| (*n, segment.length));
        let at = written + self.buffer.len() as u64 + HEADER as u64;
        self.buffer.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        self.buffer.extend_from_slice(&id.0.to_le_bytes());
        event.encode_raw(&mut self.buffer);
        self.places.insert(id, Place { segment, at, length, log_bytes });
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.owed += 1;
        }
        Record { id, execution, kind, bytes: length }
    }

    /// Writes what was appended. When the disk takes nothing, records stay in memory until they are acknowledged.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let Some(mut current) = self.segments.last_entry() else { return Ok(()) };
        let segment = current.get_mut();
        segment.file.write_all_at(&self.buffer, segment.length)?;
        segment.length += self.buffer.len() as u64;
        let full = segment.length >= SEGMENT_BYTES;
        self.buffer.clear();
        if full { self.begin_segment() } else { Ok(()) }
    }

    /// A record as it is sent: an event in its encoded form. Most are sent before they are written, and never read back.
    pub fn read(&self, id: RecordId) -> io::Result<Cow<'_, [u8]>> {
        let place = self.places.get(&id).ok_or(io::ErrorKind::NotFound)?;
        let segment = self.segments.get(&place.segment).ok_or(io::ErrorKind::NotFound)?;
        if place.at >= segment.length {
            let from = (place.at - segment.length) as usize;
            let bytes = self.buffer.get(from..from + place.length).ok_or(io::ErrorKind::UnexpectedEof)?;
            return Ok(bytes.into());
        }
        let mut bytes = vec![0; place.length];
        segment.file.read_exact_at(&mut bytes, place.at)?;
        Ok(bytes.into())
    }

    /// Drops a record, and returns the bytes that its job's output may use again.
    pub fn forget(&mut self, id: RecordId) -> usize {
        let Some(place) = self.places.remove(&id) else { return 0 };
        let current = self.segments.last_key_value().map(|(number, _)| *number);
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.owed -= 1;
            if segment.owed == 0 && current != Some(place.segment) {
                _ = fs::remove_file(&segment.path);
                self.segments.remove(&place.segment);
            }
        }
        place.log_bytes
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let number = self.segments.last_key_value().map_or(1, |(number, _)| number + 1);
        let path = self.folder.join(format!("{number:010}"));
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(&path)?;
        let idle: Vec<u64> = self.segments.iter().filter(|(_, s)| s.owed == 0).map(|(number, _)| *number).collect();
        for number in idle {
            if let Some(segment) = self.segments.remove(&number) {
                _ = fs::remove_file(segment.path);
            }
        }
        self.segments.insert(number, Segment { file, path, length: 0, owed: 0 });
        Ok(())
    }

    fn recover(&mut self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Ok(number @ ..MAX_NUMBER) = name.parse() {
                let file = OpenOptions::new().read(true).write(true).open(&path)?;
                self.segments.insert(number, Segment { file, path, length: 0, owed: 0 });
            }
        }
        for number in self.segments.keys().copied().collect::<Vec<_>>() {
            records.extend(self.recover_segment(number)?);
        }
        records.sort_by_key(|record| record.id);
        self.next = records.last().map_or(1, |record| record.id.0 + 1);
        Ok(records)
    }

    /// The records of a segment up to the first that was not written whole.
    fn recover_segment(&mut self, number: u64) -> io::Result<Vec<Record>> {
        let Some(segment) = self.segments.get_mut(&number) else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        (&segment.file).read_to_end(&mut bytes)?;
        segment.length = bytes.len() as u64;
        let mut records = Vec::new();
        let mut at = 0;
        while let Some((record, length)) = parse(&bytes[at..]) {
            let at_data = (at + HEADER) as u64;
            let log_bytes = 0;
            self.places.insert(record.id, Place { segment: number, at: at_data, length, log_bytes });
            segment.owed += 1;
            records.push(record);
            at += HEADER + length;
        }
        Ok(records)
    }
}

fn parse(bytes: &[u8]) -> Option<(Record, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_first_chunk::<8>()?;
    let (length, id) = (u32::from_le_bytes(*length) as usize, u64::from_le_bytes(*id));
    if length == 0 || length > MAX_RECORD || id >= MAX_NUMBER {
        return None;
    }
    let event = v1::WorkerEvent::decode(rest.get(..length)?).ok()?;
    let (execution, kind) = match convert::from_worker(event).ok()? {
        FromWorker::Logs(chunk) => (chunk.execution, RecordKind::Logs { end: chunk.end() }),
        FromWorker::Finished(finished) => (finished.execution, RecordKind::Finished),
        _ => return None,
    };
    Some((Record { id: RecordId(id), execution, kind, bytes: length }, length))
}

/// Executions with a log and no end, and how many entries their logs have.
fn unended(records: &[Record]) -> Vec<(ExecutionId, u64)> {
    let mut ends: BTreeMap<ExecutionId, u64> = BTreeMap::new();
    for record in records {
        if let RecordKind::Logs { end } = record.kind {
            let known = ends.entry(record.execution).or_default();
            *known = end.max(*known);
        }
    }
    for record in records.iter().filter(|record| record.kind == RecordKind::Finished) {
        ends.remove(&record.execution);
    }
    ends.into_iter().collect()
}
