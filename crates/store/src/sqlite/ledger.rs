//! Commits are entered here before anything else: they are written through to the disk, and can be
//! answered. The tables follow a moment later, many commits at a time and without a sync for each. What a crash kept
//! from them is found here and entered then.
//!
//! There are two files. While one is written to, the tables are synced that hold what is in the other; then that one is
//! begun anew. An entry names the commit before it, so an old one that is still there is not taken for the next.

use super::entry::{self, Entry};
use crate::{Commit, StoreError};
use rustix::fs::OFlags;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Disks write whole blocks, and a write past the page cache must be of whole blocks.
const BLOCK: usize = 4096;
/// Commits of more bytes than this go to the tables directly: they would only be written twice.
pub const LARGEST: usize = if cfg!(test) { 16 << 10 } else { 4 << 20 };
/// A file that has grown to this is not written to any more.
const FULL: u64 = if cfg!(test) { 256 << 10 } else { 16 << 20 };
/// Files are lengthened by zeros before they are needed: a write inside of a file is one write of the disk, one that
/// makes it longer writes the file system's journal, too. They double, up to a point: whoever comes meanwhile waits, so it
/// should be seldom, and a server that has little to do should not have large files.
const STEP: usize = 128 << 10;
const LONGEST_STEP: u64 = 2 << 20;
const MARGIN: u64 = 48 << 10;
/// What a large commit needed beyond this is given back.
const KEPT: usize = 256 << 10;
/// Checksum, length, and the number of the commit before it.
const HEADER: usize = 4 + 4 + 8;

/// What an earlier life left. Nobody else can open the ledger from here on.
pub struct Found {
    lock: File,
    paths: [PathBuf; 2],
    /// In the order of their coming.
    pub commits: Vec<FoundCommit>,
}

pub struct FoundCommit {
    pub commit: Commit,
    /// The number of the commit before it.
    pub after: u64,
}

pub struct Ledger {
    _lock: File,
    halves: [Half; 2],
    current: usize,
    record: Vec<u8>,
    blocks: Blocks,
}

struct Half {
    path: PathBuf,
    file: File,
    /// The file is this long, and all of it was written once.
    length: u64,
    /// Where the next entry goes.
    end: u64,
    /// The last commit in it, counted over all that were entered.
    last: u64,
}

impl Found {
    /// Opens the ledger of a database, and makes it first if there is none.
    pub fn open(database: &Path) -> Result<Self, StoreError> {
        let paths = ["-ledger-1", "-ledger-2"].map(|name| {
            let mut path = database.as_os_str().to_owned();
            path.push(name);
            PathBuf::from(path)
        });
        let lock = open(&paths[0], OFlags::empty()).map_err(cannot_open)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Open("another server has this database open".into()));
            }
            Err(TryLockError::Error(error)) => return Err(cannot_open(error)),
        }
        let mut commits = Vec::new();
        for path in &paths {
            match fs::read(path) {
                Ok(bytes) => commits.extend(found_in(&bytes)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot_open(error)),
            }
        }
        commits.sort_by_key(FoundCommit::place);
        Ok(Self { lock, paths, commits })
    }

    /// Begins anew: everything that was found is durable in the tables.
    pub fn renew(self) -> Result<Ledger, StoreError> {
        // Past the page cache where the file system can: that is what a sync would do anyway, in fewer steps. Where it
        // cannot, it says so when the file is opened or first written to.
        let direct = OFlags::DSYNC | OFlags::DIRECT;
        let begin = |flags| Ok([Half::new(&self.paths[0], flags)?, Half::new(&self.paths[1], flags)?]);
        let halves = begin(direct).or_else(|_: io::Error| begin(OFlags::DSYNC)).map_err(cannot_open)?;
        Ok(Ledger { _lock: self.lock, halves, current: 0, record: Vec::new(), blocks: Blocks::default() })
    }
}

impl Ledger {
    /// Enters a commit durably, which comes after the one with this number and is the `count`th since the start.
    pub fn enter(&mut self, entry: &Entry, after: u64, count: u64) -> Result<(), StoreError> {
        self.record.clear();
        self.record.resize(HEADER, 0);
        entry.write_to(&mut self.record)?;
        seal(&mut self.record, after);
        let half = &mut self.halves[self.current];
        let blocks = self.blocks.hold(&self.record);
        half.file.write_all_at(blocks, half.end).map_err(unavailable)?;
        half.end += blocks.len() as u64;
        half.length = half.length.max(half.end);
        half.last = count;
        if blocks.len() > KEPT {
            (self.record, self.blocks) = (Vec::new(), Blocks::default());
        }
        Ok(())
    }

    /// Whether the file in use takes no more.
    pub fn is_full(&self) -> bool {
        self.halves[self.current].end >= FULL
    }

    /// The last commit that must be durable in the tables before the other file can be begun anew.
    pub fn other_ends_with(&self) -> u64 {
        self.halves[1 - self.current].last
    }

    /// Half of the file in use is written: it is time to see to the other one.
    pub fn is_half_full(&self) -> bool {
        self.halves[self.current].end >= FULL / 2
    }

    /// Begins the other file anew. All that is in it is durable in the tables.
    pub fn turn(&mut self) {
        self.current = 1 - self.current;
        self.begin();
    }

    /// All that was entered is durable in the tables.
    pub fn settle(&mut self) {
        self.halves.iter_mut().for_each(|half| half.last = 0);
        self.begin();
    }

    fn begin(&mut self) {
        let half = &mut self.halves[self.current];
        (half.end, half.last) = (0, 0);
    }

    /// Called when nobody waits: the next entries find room.
    pub fn tend(&mut self) -> Result<(), StoreError> {
        let half = &mut self.halves[self.current];
        match half.end + MARGIN > half.length && half.length < FULL {
            true => half.lengthen().map_err(unavailable),
            false => Ok(()),
        }
    }

    /// Nothing in it is needed any more.
    pub fn remove(self) {
        for half in self.halves {
            // One that stays says nothing that the tables do not.
            fs::remove_file(half.path).ok();
        }
    }
}

impl Half {
    /// With these flags a write that returns is on the disk.
    fn new(path: &Path, flags: OFlags) -> io::Result<Self> {
        let file = open(path, flags)?;
        file.set_len(0)?;
        let mut half = Self { path: path.to_owned(), file, length: 0, end: 0, last: 0 };
        half.lengthen()?;
        Ok(half)
    }

    fn lengthen(&mut self) -> io::Result<()> {
        let step = self.length.clamp(STEP as u64, LONGEST_STEP);
        let zeros = vec![0; usize::try_from(step).unwrap_or(STEP)];
        self.file.write_all_at(Blocks::default().hold(&zeros), self.length)?;
        self.length += zeros.len() as u64;
        Ok(())
    }
}

/// Whole blocks, which begin at a block's boundary in memory, too.
#[derive(Default)]
struct Blocks(Vec<u8>);

impl Blocks {
    fn hold(&mut self, bytes: &[u8]) -> &[u8] {
        let length = bytes.len().next_multiple_of(BLOCK);
        if self.0.len() < length + BLOCK {
            self.0 = vec![0; length + BLOCK];
        }
        let begin = self.0.as_ptr().align_offset(BLOCK).min(BLOCK);
        let blocks = &mut self.0[begin..begin + length];
        let (filled, rest) = blocks.split_at_mut(bytes.len());
        filled.copy_from_slice(bytes);
        rest.fill(0);
        blocks
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed()).open(path)
}

impl FoundCommit {
    /// Among all commits.
    pub fn place(&self) -> (u64, u64) {
        (self.commit.epoch, self.commit.batch.number)
    }
}

fn seal(record: &mut [u8], after: u64) {
    let length = u32::try_from(record.len() - HEADER).unwrap_or(u32::MAX);
    record[4..8].copy_from_slice(&length.to_le_bytes());
    record[8..16].copy_from_slice(&after.to_le_bytes());
    let checksum = crc32fast::hash(&record[4..]);
    record[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// The commits in a file up to the first that is not whole, or older than the one before it.
fn found_in(bytes: &[u8]) -> Result<Vec<FoundCommit>, StoreError> {
    let mut commits: Vec<FoundCommit> = Vec::new();
    let mut rest = bytes;
    while let Some((after, record)) = whole_record(rest) {
        let commit = entry::read(record);
        let commit = commit.map_err(|error| StoreError::Open(format!("its ledger cannot be read: {error}")))?;
        let found = FoundCommit { commit, after };
        if commits.last().is_some_and(|last| last.place() >= found.place()) {
            break;
        }
        commits.push(found);
        rest = rest.get((HEADER + record.len()).next_multiple_of(BLOCK)..).unwrap_or_default();
    }
    Ok(commits)
}

/// The first record of these bytes, and the number of the commit before it.
fn whole_record(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let checksum = u32::from_le_bytes(*bytes.first_chunk()?);
    let length = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?) as usize;
    let after = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let sealed = bytes.get(4..HEADER.checked_add(length)?)?;
    (length > 0 && crc32fast::hash(sealed) == checksum).then(|| (after, &sealed[HEADER - 4..]))
}

fn unavailable(error: io::Error) -> StoreError {
    StoreError::Unavailable(format!("the ledger cannot be written: {error}"))
}

fn cannot_open(error: io::Error) -> StoreError {
    StoreError::Open(format!("the ledger cannot be used: {error}"))
}
