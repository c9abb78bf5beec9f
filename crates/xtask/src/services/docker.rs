//! A Docker engine, as the tests need it: its own socket and folders, no registry, and two small images.
//!
//! Engines share the machine's bridge and its packet filter, so there is one at a time: whoever comes second waits. An
//! engine that runs already can be used instead if `HODEI_TEST_DOCKER` names it.

use super::{Folder, LONGEST_SOCKET, complete, install};
use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    os::unix::{fs::symlink, net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

const PROGRAM: &str = "dockerd";
/// The engine, and the one program of the images.
const PACKAGES: [&str; 2] = ["docker.io", "busybox-static"];
const VARIABLE: &str = "HODEI_TEST_DOCKER";
/// Of the paths that an engine makes below its folder this is about the longest that is a socket.
const SOCKET_NAME: usize = 45;
const START: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Where the second storage driver is for: a machine whose kernel or disk cannot do the first.
const DRIVERS: [&str; 2] = ["overlay2", "vfs"];

/// Almost nothing: one program under many names, and a variable. No /tmp, no users, no libraries.
const IMAGES: [(&str, &[&str]); 2] = [
    ("hodei-test/busybox", &["ENV COLOUR=blue", "ENV PATH=/bin", "CMD [\"/bin/false\"]"]),
    // The same, for somebody who is not root.
    ("hodei-test/nobody", &["ENV PATH=/bin", "USER 65534:65534"]),
];

/// Stops the engine, which ends the containers, and removes what it leaves mounted.
const CLEANER: &str = r#"
pid=$(cat "$folder/dockerd.pid" 2>/dev/null)
runs() { [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; }
runs && kill "$pid"
for _ in $(seq 600); do runs || break; sleep 0.05; done
runs && kill -9 "$pid"
cut -d' ' -f2 /proc/mounts | grep "^$folder/" | sort -r | while read -r mount; do umount -l "$mount"; done
rm -rf --one-file-system "$folder"
"#;

pub struct Docker {
    socket: PathBuf,
    /// None for an engine of somebody else's.
    _folder: Option<Folder>,
}

impl Docker {
    pub fn start(parent: &Path) -> Result<Self> {
        if let Ok(named) = env::var(VARIABLE) {
            let socket = named.strip_prefix("unix://").with_context(|| format!("{VARIABLE} is not unix:///path"))?;
            let docker = Self { socket: socket.into(), _folder: None };
            docker.import_images(parent)?;
            return Ok(docker);
        }
        if find(PROGRAM).is_none() || busybox().is_none() {
            install(&PACKAGES).context("a Docker engine and busybox are not here and cannot be installed")?;
        }
        ensure!(rustix::process::geteuid().is_root(), "only root may start a Docker engine; name one in {VARIABLE}");
        let lock = only_one()?;
        let path = place(parent)?;
        let socket = path.join("docker.sock");
        let folder = Folder::clean_later(path.clone(), CLEANER, &[], Some(lock))?;
        let docker = Self { socket, _folder: Some(folder) };
        docker.run(&path)?;
        docker.import_images(&path)?;
        eprintln!("a Docker engine listens on {}", docker.socket.display());
        Ok(docker)
    }

    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![(VARIABLE, format!("unix://{}", self.socket.display()))]
    }

    fn run(&self, folder: &Path) -> Result<()> {
        let mut said = String::new();
        for driver in DRIVERS {
            let mut engine = engine(folder, &self.socket, driver)?;
            if self.comes_up(&mut engine)? {
                return Ok(());
            }
            said = fs::read_to_string(folder.join("log")).unwrap_or_default();
        }
        bail!("the Docker engine does not start:\n{}", said.lines().rev().take(5).collect::<Vec<_>>().join("\n"))
    }

    /// False if it ended instead.
    fn comes_up(&self, engine: &mut Child) -> Result<bool> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            if self.ask("GET", "/_ping", &[]).is_ok() {
                return Ok(true);
            }
            if engine.try_wait()?.is_some() {
                return Ok(false);
            }
            thread::sleep(LOOK_AGAIN);
        }
        bail!("the Docker engine does not answer")
    }

    fn import_images(&self, folder: &Path) -> Result<()> {
        let files = files(folder)?;
        for (name, changes) in IMAGES {
            let changes: String = changes.iter().map(|change| format!("&changes={}", escape(change))).collect();
            let path = format!("/images/create?fromSrc=-&repo={}&tag=1{changes}", escape(name));
            let answer = self.ask("POST", &path, &files)?;
            ensure!(!answer.contains("\"error\""), "the engine does not take the image {name}: {answer}");
        }
        Ok(())
    }

    /// One call of its interface. In the old version of HTTP the answer ends with the connection.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/x-tar\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        ensure!(status.starts_with('2'), "{method} {path}: {answer}");
        Ok(answer)
    }
}

fn engine(folder: &Path, socket: &Path, driver: &str) -> Result<Child> {
    let log = File::create(folder.join("log"))?;
    let configuration = folder.join("configuration.json");
    fs::write(&configuration, "{}")?;
    Command::new(find(PROGRAM).unwrap_or_else(|| PROGRAM.into()))
        .arg("--data-root")
        .arg(folder.join("data"))
        .arg("--exec-root")
        .arg(folder.join("exec"))
        .arg("--pidfile")
        .arg(folder.join("dockerd.pid"))
        .args(["--storage-driver", driver, "--host"])
        .arg(format!("unix://{}", socket.display()))
        // What somebody configured for this machine is not for it.
        .arg("--config-file")
        .arg(configuration)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {PROGRAM}"))
}

/// Waits for the engine of another run of these tests. One of somebody else's would lose its network to ours.
fn only_one() -> Result<File> {
    let path = env::temp_dir().join("hodei-test-docker.lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
    if lock.try_lock().is_err() {
        eprintln!("waiting for the Docker engine of another run to end");
        lock.lock()?;
    }
    let runs = fs::read_dir("/proc")?
        .flatten()
        .any(|entry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.trim_end() == PROGRAM));
    ensure!(!runs, "another Docker engine runs on this machine; name it in {VARIABLE}=unix:///path to use it");
    Ok(lock)
}

fn place(parent: &Path) -> Result<PathBuf> {
    let name = format!("docker-{}", process::id());
    let mut path = parent.join(&name);
    if path.as_os_str().len() + SOCKET_NAME > LONGEST_SOCKET {
        path = env::temp_dir().join(format!("hodei-{name}"));
    }
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Not everybody has the folder of the engine in their path.
    let folders = env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// One that runs alone. Of the others `ldd` says what they need.
fn busybox() -> Option<PathBuf> {
    let path = find("busybox")?;
    let ldd = Command::new("ldd").arg(&path).output().ok()?;
    let needs_none = !ldd.status.success() || String::from_utf8_lossy(&ldd.stdout).contains("statically linked");
    needs_none.then_some(path)
}

/// A root file system of busybox alone, as an archive.
fn files(folder: &Path) -> Result<Vec<u8>> {
    let busybox = busybox().context("there is no busybox that needs no libraries")?;
    let root = folder.join("rootfs");
    let bin = root.join("bin");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(&bin)?;
    fs::copy(&busybox, bin.join("busybox"))?;
    let list = Command::new(&busybox).arg("--list").output()?;
    for name in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", bin.join(name))?;
    }
    let archive = folder.join("rootfs.tar");
    complete(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg("."))?;
    let files = fs::read(&archive)?;
    fs::remove_dir_all(&root)?;
    fs::remove_file(&archive)?;
    Ok(files)
}

/// For an address.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
