//! A slot's folder, which its jobs use one after the other.

use hodei_api::convert::MAX_RESULT;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};
use tokio::net::unix::pipe;

#[derive(Debug)]
pub(super) struct Folder {
    /// The default working directory, and where temporary files go.
    pub work: PathBuf,
    pub progress: PathBuf,
    pub result: PathBuf,
    pub script: PathBuf,
    /// The reading end of the progress FIFO. It is open for writing, too, so that it never comes to its end.
    pub reports: pipe::Receiver,
}

/// What a job left as its result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    Result(Vec<u8>),
    /// Not usable, and why.
    Bad(String),
}

impl Folder {
    pub(super) fn create(scratch: &Path, slot: u32) -> io::Result<Self> {
        let dir = scratch.join(format!("slot-{slot}"));
        // What a former life left here is nobody's.
        remove(&dir)?;
        let work = dir.join("work");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&work)?;
        let progress = dir.join("progress");
        let reports = open_reports(&progress)?;
        Ok(Self { work, progress, result: dir.join("result"), script: dir.join("script"), reports })
    }

    pub(super) fn write_script(&self, content: &str) -> io::Result<()> {
        // A new file each time: one that is still being run cannot be written to.
        remove(&self.script)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&self.script)?;
        file.write_all(content.as_bytes())
    }

    pub(super) fn take_result(&self) -> Left {
        // Not to hang on a FIFO that a job put there.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(&self.result) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Left::Nothing,
            Err(error) => return Left::Bad(format!("the result cannot be read: {error}")),
        };
        let mut bytes = Vec::new();
        if let Err(error) = file.take(MAX_RESULT as u64 + 1).read_to_end(&mut bytes) {
            return Left::Bad(format!("the result cannot be read: {error}"));
        }
        if bytes.len() > MAX_RESULT {
            return Left::Bad(format!("the result is larger than {MAX_RESULT} bytes"));
        }
        if bytes.trim_ascii().is_empty() {
            return Left::Nothing;
        }
        match serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            Ok(_) => Left::Result(bytes),
            Err(error) => Left::Bad(format!("the result is not JSON: {error}")),
        }
    }

    /// Makes it as new for the next job. When the last one left nothing this costs a few looks.
    pub(super) async fn tidy(&mut self) -> io::Result<()> {
        if !is_empty_folder(&self.work) {
            let work = self.work.clone();
            tokio::task::spawn_blocking(move || empty(&work)).await.map_err(io::Error::other)??;
        }
        if !self.reports_are_ours() {
            remove(&self.progress)?;
            self.reports = open_reports(&self.progress)?;
        }
        remove(&self.result)
    }

    /// A job may have removed or replaced the FIFO.
    fn reports_are_ours(&self) -> bool {
        let ours = rustix::fs::fstat(&self.reports);
        let named = fs::symlink_metadata(&self.progress);
        matches!((ours, named), (Ok(ours), Ok(named)) if named.file_type().is_fifo() && named.ino() == ours.st_ino)
    }
}

fn open_reports(path: &Path) -> io::Result<pipe::Receiver> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0)?;
    pipe::OpenOptions::new().read_write(true).open_receiver(path)
}

fn is_empty_folder(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

fn empty(dir: &Path) -> io::Result<()> {
    remove(dir)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Removes whatever is there, if anything is.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory || error.kind() == ErrorKind::PermissionDenied => {
            fs::remove_dir_all(path)
        }
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
