//! Makes the file of the write-ahead log longer before commits need it.
//!
//! A sync of bytes that lie inside a file is one write of the disk; one that makes the file longer writes the file system's
//! journal, too, and takes about twice as long. So the log is lengthened by zeros after a commit was answered, when
//! nobody waits for it. To SQLite they are what an older log may leave there: the log ends where no valid frame follows.

use crate::StoreError;
use rusqlite::{Connection, TransactionBehavior};
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const STEP: usize = 1 << 20;
/// The log is lengthened when less than this is left of it.
const MARGIN: u64 = 512 << 10;
/// Beyond this it is not lengthened: soon it is copied and begins anew.
const ENOUGH: u64 = 64 << 20;
/// Of the log, and of each page in it.
const HEADER: u64 = 32;
const PAGE_HEADER: u64 = 24;

pub struct Ahead {
    path: PathBuf,
    page_size: u64,
    /// Of the file, as far as is known.
    length: u64,
}

impl Ahead {
    pub fn new(database: &Path, connection: &Connection) -> Result<Self, StoreError> {
        let page_size: u32 = connection.query_one("PRAGMA page_size", (), |row| row.get(0))?;
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Ok(Self { path: path.into(), page_size: page_size.into(), length: 0 })
    }

    /// The file was cut off.
    pub fn was_truncated(&mut self) {
        self.length = 0;
    }

    /// Called between commits, with the number of pages in the log.
    pub fn tend(&mut self, writer: &Connection, pages: i64) -> Result<(), StoreError> {
        let end = HEADER + (self.page_size + PAGE_HEADER) * u64::try_from(pages).unwrap_or(0);
        if pages == 0 || end >= ENOUGH || end + MARGIN <= self.length {
            return Ok(());
        }
        // With the lock that writers hold, so that nobody else lengthens the file in the meantime.
        let lock = rusqlite::Transaction::new_unchecked(writer, TransactionBehavior::Immediate)?;
        // Where it cannot be done now, commits lengthen the file as they need it.
        self.length = lengthen(&self.path, end).unwrap_or(end + STEP as u64);
        Ok(lock.rollback()?)
    }
}

/// Adds zeros at the end of the file, if that is near, and returns where it is then.
fn lengthen(path: &Path, used: u64) -> io::Result<u64> {
    let file = OpenOptions::new().write(true).open(path)?;
    let length = file.metadata()?.len();
    if used + MARGIN <= length {
        return Ok(length);
    }
    file.write_all_at(&vec![0; STEP], length)?;
    file.sync_data()?;
    Ok(length + STEP as u64)
}
