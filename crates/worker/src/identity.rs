//! Who this worker is: what it keeps on disk so that a restart of its agent is the same worker.

use hodei_core::id::WorkerId;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};
use uuid::Uuid;

const FILE: &str = "identity.json";

#[derive(Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Proves to the server that a repeated registration comes from here.
    pub key: String,
    /// The token that was used last, so that a new one is recognised.
    pub token: Option<String>,
    pub worker: Option<WorkerId>,
    /// The credential that the server gave us.
    pub session: Option<String>,
    #[serde(skip)]
    path: PathBuf,
}

impl Identity {
    /// What is on disk, or a new identity without a session.
    pub fn load(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => Ok(Self { path, ..serde_json::from_slice(&bytes)? }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self {
                key: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
                token: None,
                worker: None,
                session: None,
                path,
            }),
            Err(error) => Err(error),
        }
    }

    /// Written beside and renamed, so that a crash leaves the old or the new one; readable by its owner only.
    pub fn save(&self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(new, &self.path)
    }
}
