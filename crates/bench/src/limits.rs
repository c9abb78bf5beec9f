//! What the machine itself can do: nothing that runs processes or keeps promises can be faster.

use crate::report::{self, mebibytes, millis, percentiles};
use anyhow::Result;
use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const SPAWNS_PER_THREAD: usize = 2000;
const SYNCS: usize = 500;
const STAMPS: usize = 200;

pub struct Limits {
    /// /bin/true per second, started and awaited by two threads that do nothing else.
    pub spawns_per_second: f64,
    pub sync: Vec<Duration>,
    /// From the call that starts a process to its first instruction of its own.
    pub spawn: Vec<Duration>,
}

pub fn measure() -> Result<Limits> {
    Ok(Limits { spawns_per_second: spawn_loop()?, sync: sync_loop()?, spawn: stamp_loop()? })
}

impl Limits {
    pub fn tell(&self, hodei: &Path) -> Result<()> {
        report::heading("this machine");
        let cores = thread::available_parallelism().map_or(0, usize::from);
        report::line("cores", cores);
        report::line("/bin/true, two threads of posix_spawn and wait", format!("{:.0} /s", self.spawns_per_second));
        report::line("one synced 8 KiB write", percentiles(self.sync.clone()));
        report::line("posix_spawn to the child's main", percentiles(self.spawn.clone()));
        report::line("size of the hodei binary", mebibytes(std::fs::metadata(hodei)?.len()));
        Ok(())
    }
}

/// Also run between the measurements of Hodei, so that a change of the machine's mood is seen.
pub fn spawn_loop() -> Result<f64> {
    let began = Instant::now();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(|| -> Result<()> {
                for _ in 0..SPAWNS_PER_THREAD {
                    Command::new("/bin/true").stdin(Stdio::null()).status()?;
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread died"))??;
    }
    Ok(2.0 * SPAWNS_PER_THREAD as f64 / began.elapsed().as_secs_f64())
}

fn sync_loop() -> Result<Vec<Duration>> {
    let folder = tempfile::tempdir()?;
    let file = File::create(folder.path().join("sync"))?;
    let block = [7u8; 8192];
    (0..SYNCS)
        .map(|i| {
            let began = Instant::now();
            file.write_all_at(&block, (i * block.len()) as u64)?;
            file.sync_data()?;
            Ok(began.elapsed())
        })
        .collect()
}

fn stamp_loop() -> Result<Vec<Duration>> {
    let program = std::env::current_exe()?;
    (0..STAMPS)
        .map(|_| {
            let began = now();
            let output = Command::new(&program).arg("--stamp").output()?;
            Ok(parse_stamp(&output.stdout).saturating_sub(began))
        })
        .collect()
}

pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub fn print_stamp() {
    let stamp = now().as_nanos();
    _ = writeln!(std::io::stdout(), "{stamp}");
}

pub fn parse_stamp(text: &[u8]) -> Duration {
    let nanos = String::from_utf8_lossy(text).trim().parse().unwrap_or(0);
    Duration::from_nanos(nanos)
}

pub fn median(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort();
    millis(times.get(times.len() / 2).copied().unwrap_or_default())
}
