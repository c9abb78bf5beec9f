//! A commit on its way to the ledger and the tables. The records of its jobs, which are most of it, are made once for both.

use crate::{
    Aside, Commit, StoreError,
    record::{decode, encode_compact},
};
use hodei_core::{
    brain::{Batch, JobWrite},
    job::Job,
    protocol::LogChunk,
};
use std::{ops::Range, sync::Arc};

/// The length of what is not there.
const NONE: u32 = u32::MAX;

pub struct Entry {
    pub commit: Arc<Commit>,
    /// The jobs, and where in them the record of each is.
    jobs: Vec<u8>,
    records: Vec<Range<usize>>,
}

impl Entry {
    pub fn of(commit: Arc<Commit>) -> Result<Self, StoreError> {
        let (mut jobs, mut records) = (Vec::new(), Vec::with_capacity(commit.batch.jobs.len()));
        for write in &commit.batch.jobs {
            let begin = jobs.len() + 4;
            jobs.extend_from_slice(&NONE.to_le_bytes());
            encode_compact(&write.job, &mut jobs)?;
            let length = length_of(&jobs[begin..])?;
            jobs[begin - 4..begin].copy_from_slice(&length);
            records.push(begin..jobs.len());
            for part in [&write.payload, &write.result, &write.data, &write.input] {
                put(&mut jobs, part.as_deref())?;
            }
        }
        Ok(Self { commit, jobs, records })
    }

    /// The jobs that are written, each with its record.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobWrite, &[u8])> {
        self.commit.batch.jobs.iter().zip(self.records.iter().map(|place| &self.jobs[place.clone()]))
    }

    /// About the bytes that it takes in the ledger.
    pub fn size(&self) -> usize {
        self.jobs.len() + self.commit.logs.iter().map(|chunk| chunk.data.len()).sum::<usize>()
    }

    pub fn write_to(&self, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        put(buffer, Some(&self.jobs))?;
        let Commit { epoch, batch, logs, aside } = &*self.commit;
        encode_compact(&(epoch, batch, logs, aside), buffer)
    }
}

/// What [`Entry::write_to`] wrote.
pub fn read(mut bytes: &[u8]) -> Result<Commit, StoreError> {
    let mut jobs = take(&mut bytes)?.unwrap_or_default();
    let (epoch, mut batch, logs, aside): (u64, Batch, Vec<LogChunk>, Aside) = decode(bytes)?;
    while !jobs.is_empty() {
        let job: Job = decode(take(&mut jobs)?.unwrap_or_default())?;
        let mut part = || Ok::<_, StoreError>(take(&mut jobs)?.map(Arc::from));
        let (payload, result, data, input) = (part()?, part()?, part()?, part()?);
        batch.jobs.push(JobWrite { job: Arc::new(job), payload, result, data, input });
    }
    Ok(Commit { epoch, batch, logs, aside })
}

fn put(buffer: &mut Vec<u8>, part: Option<&[u8]>) -> Result<(), StoreError> {
    buffer.extend_from_slice(&part.map_or(Ok(NONE.to_le_bytes()), length_of)?);
    buffer.extend_from_slice(part.unwrap_or_default());
    Ok(())
}

fn length_of(bytes: &[u8]) -> Result<[u8; 4], StoreError> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length != NONE);
    length.map(u32::to_le_bytes).ok_or_else(|| StoreError::Broken("a commit is too large".into()))
}

fn take<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, StoreError> {
    let short = || StoreError::Broken("an entry of the ledger is cut off".into());
    let (length, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    *bytes = rest;
    let length = u32::from_le_bytes(*length);
    if length == NONE {
        return Ok(None);
    }
    let (part, rest) = bytes.split_at_checked(length as usize).ok_or_else(short)?;
    *bytes = rest;
    Ok(Some(part))
}
