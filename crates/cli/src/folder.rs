//! The data folder: one server at a time has it, and says in the lock who it is.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const LOCK: &str = "lock";

/// A data folder that nobody else serves while this is held.
pub struct Folder {
    pub path: PathBuf,
    _lock: File,
}

/// The server that has the folder, or had it last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Started by a command that found no server.
    pub background: bool,
    /// Its jobs are not in the folder's own database.
    pub elsewhere: bool,
}

impl Folder {
    /// Takes the folder, or nothing when another server has it.
    pub fn take(path: PathBuf, background: bool, elsewhere: bool) -> Result<Option<Self>> {
        let here = || format!("cannot use the data folder {}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&path).with_context(here)?;
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK));
        let mut lock = lock.with_context(here)?;
        match lock.try_lock() {
            Ok(()) => {
                let holder = Holder { pid: std::process::id(), background, elsewhere };
                lock.set_len(0).and_then(|()| lock.write_all(&serde_json::to_vec(&holder)?)).with_context(here)?;
                Ok(Some(Self { path, _lock: lock }))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(here),
        }
    }
}

impl Holder {
    pub fn of(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(LOCK)).ok()?).ok()
    }

    /// Why a server cannot have the folder, and what to do about it.
    pub fn complaint(folder: &Path) -> String {
        let here = folder.display();
        match Self::of(folder) {
            Some(Holder { pid, background: true, .. }) => format!(
                "a background server (process {pid}) runs on {here} already; it leaves when it is idle, or stop it with 'kill {pid}'"
            ),
            Some(Holder { pid, .. }) => {
                format!(
                    "a server (process {pid}) runs on {here} already; stop it, or choose another folder with --data"
                )
            }
            None => format!("a server runs on {here} already; stop it, or choose another folder with --data"),
        }
    }
}
