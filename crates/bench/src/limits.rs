//! What the machine itself can do: nothing that runs processes or keeps promises can be faster.

use crate::record::Record;
use anyhow::Result;
use std::{
    fs::{self, File},
    net::UdpSocket,
    os::unix::fs::FileExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const SPAWNS_PER_THREAD: usize = 2000;
const SYNCS: usize = 500;
const STAMPS: usize = 200;

/// The names of the limits in a record.
pub const SPAWNS: &str = "/bin/true, two threads of posix_spawn and wait";
/// The same as [`SPAWNS`], beside what is compared with it.
pub const SPAWNS_BESIDE: &str = "the same, just before and after the process jobs";
const SYNC: &str = "one synced 8 KiB write, p50";
const SYNC_TAIL: &str = "one synced 8 KiB write, p99";
const SPAWN: &str = "posix_spawn to the child's main, p50";

/// Measured before and after everything else, so that a change of the machine's mood is seen.
pub fn measure(record: &mut Record) -> Result<()> {
    record.limit(SPAWNS, "/s", spawn_loop()?);
    let mut syncs = sync_loop()?;
    syncs.sort();
    let millis = |time: Option<&Duration>| time.copied().unwrap_or_default().as_secs_f64() * 1000.0;
    record.limit(SYNC, "ms", millis(syncs.get(syncs.len() / 2)));
    record.limit(SYNC_TAIL, "ms", millis(syncs.get(syncs.len() * 99 / 100)));
    let mut spawns = stamp_loop()?;
    spawns.sort();
    record.limit(SPAWN, "ms", millis(spawns.get(spawns.len() / 2)));
    Ok(())
}

pub fn measure_spawns_beside(record: &mut Record) -> Result<()> {
    record.limit(SPAWNS_BESIDE, "/s", spawn_loop()?);
    Ok(())
}

/// What this machine is, in words.
pub fn machine() -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once([':', '=']))
            .map_or("?".into(), |(_, v)| v.trim().trim_matches('"').to_owned())
    };
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let memory: u64 = after(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    [
        ("cores", cores.to_string()),
        ("processor", after(&read("/proc/cpuinfo"), "model name")),
        ("memory", format!("{:.0} GiB", memory as f64 / f64::from(1 << 20))),
        ("system", after(&read("/etc/os-release"), "PRETTY_NAME")),
        ("load when it began, 1 minute", read("/proc/loadavg").split(' ').next().unwrap_or("?").to_owned()),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .to_vec()
}

fn spawn_loop() -> Result<f64> {
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

/// Prints the time, or sends it to a port on loopback as a handler of a peer would.
pub fn stamp(port: Option<&str>) -> Result<()> {
    let time = now();
    let Some(port) = port else {
        println!("{}", time.as_nanos());
        return Ok(());
    };
    UdpSocket::bind("127.0.0.1:0")?
        .send_to(format!("1 {}", time.as_micros()).as_bytes(), ("127.0.0.1", port.parse()?))?;
    Ok(())
}

pub fn parse_stamp(text: &[u8]) -> Duration {
    let nanos = String::from_utf8_lossy(text).trim().parse().unwrap_or(0);
    Duration::from_nanos(nanos)
}
