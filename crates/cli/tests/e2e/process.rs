//! Processes of a test: started in a folder of its own, watched, and gone when the test is over.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    fmt,
    fs::{self, File},
    future::Future,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub const HODEI: &str = env!("CARGO_BIN_EXE_hodei");
/// Longer than anything that works takes, on a busy machine too.
pub const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Waits until `look` finds something.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until `holds` does.
pub async fn until_true(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || std::future::ready(holds().then_some(()))).await;
}

/// The folder of a test, and how programs are run in it.
pub struct Home {
    folder: TempDir,
}

/// What a program left behind.
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        write!(f, "exit code {}\n---- stdout\n{stdout}\n---- stderr\n{}", self.code, self.stderr)
    }
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("UTF-8")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Fails unless the program succeeded.
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

impl Home {
    pub fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a file");
        path
    }

    /// What was written to a file so far; nothing if it is not there yet.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `hodei` with nothing of the tester's own settings.
    pub fn command(&self) -> Command {
        let mut command = Command::new(HODEI);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.folder.path()).env("HODEI_DATA", self.path("data")).current_dir(self.folder.path());
        command
    }

    /// Starts `hodei` with its output in a file.
    pub fn daemon(&self, name: &str, args: &[&str]) -> Daemon {
        let log = self.path(&format!("{name}.log"));
        let out = File::create(&log).expect("a log file");
        let mut command = self.command();
        command.args(args).stdin(Stdio::null()).stdout(out.try_clone().expect("a handle")).stderr(out);
        Daemon { child: command.spawn().expect("hodei starts"), log }
    }

    /// The processes whose command line names this folder, such as background servers.
    pub fn servers(&self) -> Vec<Pid> {
        self.named_in("cmdline")
    }

    /// The processes whose command line, or whose environment, names this folder.
    fn named_in(&self, file: &str) -> Vec<Pid> {
        let folder = self.folder.path().to_str().expect("UTF-8").as_bytes().to_vec();
        let names_it = |pid: &Pid| {
            let line = fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default();
            line.windows(folder.len()).any(|part| part == folder)
        };
        processes().into_iter().filter(|pid| names_it(pid)).collect()
    }

    /// The one background server, once those that were too late to become it have left.
    pub async fn server(&self) -> Pid {
        until("there is one server", || async { if let [server] = self.servers()[..] { Some(server) } else { None } })
            .await
    }

    #[allow(clippy::print_stderr)]
    fn print_logs(&self) {
        for folder in [self.folder.path().to_owned(), self.path("data")] {
            let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            for path in files.filter(|path| path.extension().is_some_and(|end| end == "log")) {
                eprintln!("---- {}\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default());
            }
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Workers that a server made outlive it, and their folder is only in their environment.
        for pid in self.servers().into_iter().chain(self.named_in("environ")) {
            _ = kill_process(pid, Signal::KILL);
        }
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

/// Runs a program to its end.
pub async fn run(command: Command) -> Ran {
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output());
    let output = output.await.expect("the program ends in time").expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code().unwrap_or(-1), stdout: output.stdout, stderr }
}

/// A process that runs until it is told to end; it is killed when this is dropped.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process to signal");
    }

    /// Whether a signal to stop has reached every thread.
    pub fn stands_still(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid().as_raw_nonzero())).expect("threads");
        threads.flatten().all(|thread| state(&thread.path()) == Some('T'))
    }

    /// kill -9.
    pub fn kill(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "a process does not end");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The rest of the first line that begins with `start`.
    pub async fn said(&self, start: &str) -> String {
        until(&format!("'{start}' is in {}", self.log.display()), || async {
            self.log().lines().find_map(|line| line.strip_prefix(start).map(str::to_owned))
        })
        .await
    }

    /// How the worker of this process isolates its jobs.
    pub async fn said_isolation(&self) -> String {
        until("the worker is up", || async {
            self.log().lines().find_map(|line| Some(line.split_once("isolation=")?.1.to_owned()))
        })
        .await
    }

    /// The most memory that it ever had, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn processes() -> Vec<Pid> {
    let names = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.file_name());
    names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?)).collect()
}

/// Whether a process is there and not merely waiting for its parent to notice its end.
pub fn is_alive(pid: i32) -> bool {
    state(Path::new(&format!("/proc/{pid}"))).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The letter for what a process or a thread does, by its folder in /proc.
fn state(folder: &Path) -> Option<char> {
    fs::read_to_string(folder.join("stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// All that descend from a process.
pub fn descendants(of: Pid) -> Vec<i32> {
    let parent = |pid: &Pid| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let parents: Vec<(i32, i32)> =
        processes().iter().filter_map(|pid| Some((pid.as_raw_nonzero().get(), parent(pid)?))).collect();
    let mut family = vec![of.as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(of) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    family.split_off(1)
}

/// The numbers in a file, one a line: jobs leave their process ids so.
pub fn numbers(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| line.trim().parse().expect("a number")).collect()
}
