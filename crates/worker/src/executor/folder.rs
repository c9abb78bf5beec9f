//! A slot's folder, which its jobs use one after the other.

use super::{clock::wall, exchange};
use hodei_api::convert::MAX_RESULT;
use hodei_core::{
    protocol::Assignment,
    time::{Millis, Time},
};
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
    /// What the job finds: its data, what resumed it, the results of its dependencies.
    pub data: PathBuf,
    pub input: PathBuf,
    pub dependencies: PathBuf,
    /// What it leaves besides its result: jobs to enqueue, and how it wants to end.
    pub children: PathBuf,
    pub end: PathBuf,
    pub script: PathBuf,
    /// The reading end of the progress FIFO. It is open for writing, too, so that it never comes to its end.
    pub reports: pipe::Receiver,
    /// When names in it last came or went, as it was left for the job.
    as_left: Option<Changed>,
    /// Whether the last job has, or may have, put anything there.
    touched: bool,
}

/// When the folder, and the work folder in it, were last changed. No job can set these times.
type Changed = [(i64, i64); 2];

/// Clocks of file systems tick more often than this. A change within one tick of the last would not be seen.
const TICK: Millis = Millis(50);

/// What a job left in one of its files, or why that is not usable.
pub(super) type Left = Result<Option<Vec<u8>>, String>;

impl Folder {
    pub(super) fn create(scratch: &Path, slot: u32) -> io::Result<Self> {
        let dir = scratch.join(format!("slot-{slot}"));
        // What a former life left here is nobody's.
        remove(&dir)?;
        let work = dir.join("work");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&work)?;
        let progress = dir.join("progress");
        let reports = open_reports(&progress)?;
        Ok(Self {
            work,
            progress,
            result: dir.join("result"),
            data: dir.join("data"),
            input: dir.join("input"),
            dependencies: dir.join("dependencies"),
            children: dir.join("children"),
            end: dir.join("end"),
            script: dir.join("script"),
            reports,
            as_left: None,
            touched: true,
        })
    }

    /// The folder itself.
    pub(super) fn dir(&self) -> &Path {
        self.work.parent().unwrap_or(&self.work)
    }

    pub(super) fn write_script(&self, content: &str) -> io::Result<()> {
        // A new file each time: one that is still being run cannot be written to.
        remove(&self.script)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&self.script)?;
        file.write_all(content.as_bytes())
    }

    /// Puts what the job finds besides its environment where it looks for it.
    pub(super) fn give(&self, assignment: &Assignment) -> io::Result<()> {
        let context = &assignment.context;
        let write = |path: &Path, bytes: &[u8]| {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(bytes)
        };
        if let Some(data) = exchange::data_of(assignment) {
            write(&self.data, data)?;
        }
        if let Some(input) = &context.input {
            write(&self.input, input)?;
        }
        if !context.dependencies.is_empty() {
            let list = exchange::dependencies_json(&context.dependencies).to_string();
            write(&self.dependencies, list.as_bytes())?;
        }
        Ok(())
    }

    /// What the job left in a file of its own, if it is not empty.
    pub(super) fn take(path: &Path, what: &str, most: usize) -> Left {
        // Not to hang on a FIFO that a job put there.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{what} cannot be read: {error}")),
        };
        let mut bytes = Vec::new();
        file.take(most as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| format!("{what} cannot be read: {error}"))?;
        if bytes.len() > most {
            return Err(format!("{what} is larger than {most} bytes"));
        }
        Ok((!bytes.trim_ascii().is_empty()).then_some(bytes))
    }

    /// The same, for JSON.
    pub(super) fn take_json(path: &Path, what: &str) -> Left {
        let Some(bytes) = Self::take(path, what, MAX_RESULT)? else { return Ok(None) };
        match serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) => Err(format!("{what} is not JSON: {error}")),
        }
    }

    /// Looks whether a job that has ended put anything there, or was given anything.
    pub(super) fn look(&mut self) -> bool {
        self.touched = self.as_left.is_none() || self.as_left != self.changed();
        self.touched
    }

    fn changed(&self) -> Option<Changed> {
        let time = |path: &Path| fs::symlink_metadata(path).ok().map(|found| (found.ctime(), found.ctime_nsec()));
        Some([time(self.dir())?, time(&self.work)?])
    }

    /// Makes it as new for the next job. When the last one left nothing there is nothing to do.
    pub(super) async fn tidy(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.touched, true) {
            self.clear().await?;
            let now = wall();
            let is_past = |(seconds, nanos): (i64, i64)| now - Time(seconds * 1000 + nanos / 1_000_000) > TICK;
            self.as_left = self.changed().filter(|changed| changed.iter().copied().all(is_past));
        }
        Ok(())
    }

    async fn clear(&mut self) -> io::Result<()> {
        if !is_empty_folder(&self.work) {
            let work = self.work.clone();
            tokio::task::spawn_blocking(move || empty(&work)).await.map_err(io::Error::other)??;
        }
        if !self.reports_are_ours() {
            remove(&self.progress)?;
            self.reports = open_reports(&self.progress)?;
        }
        let files = [&self.result, &self.data, &self.input, &self.dependencies, &self.children, &self.end];
        files.into_iter().try_for_each(|file| remove(file))
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
