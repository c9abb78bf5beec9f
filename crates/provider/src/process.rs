//! Workers as processes of this machine. They belong to nobody: a server that ends, however it ends, leaves them running,
//! and the next one finds them by what is written in their folders.
//!
//! The folder of a worker holds its agent's data, what the agent prints, which process the agent is and, where a server
//! saw it, how that process ended.

mod kin;
mod life;

use crate::{
    Answer, Order, Progress, Provider, ProviderError,
    agent::{self, Agent},
    settings::Settings,
    tail,
};
use futures::future::{BoxFuture, FutureExt};
use hodei_core::{
    id::{IdSet, WorkerId},
    provider::{Exit, Instance, InstanceState, ProviderCapabilities, ProviderHealth},
    requirements::Isolation,
    time::Millis,
};
use life::Life;
use rustix::system::sysinfo;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Seek, SeekFrom},
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    process::{Child, Command},
    sync::Notify,
};

/// Which process the agent is.
const LIFE: &str = "agent.json";
/// How it ended.
const EXIT: &str = "exit.json";
const LOG: &str = "agent.log";
/// The data folder of the agent.
const DATA: &str = "data";
/// A worker that was ended and whose folder is being removed.
const GONE: &str = ".gone";
/// How much of what an agent printed tells why it ended.
const OUTPUT: usize = 4 << 10;
/// Of the server's own environment a worker gets these and nothing else: the rest may hold secrets.
const PASSED_ON: [&str; 3] = ["PATH", "HOME", "LANG"];
const STARTUP: Millis = Millis(100);

#[derive(Clone, Debug, Default)]
pub struct ProcessSettings {
    /// The program of the agents; this program if left out.
    pub agent: Option<PathBuf>,
}

impl ProcessSettings {
    pub fn parse(settings: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut settings = Settings::of(settings);
        let agent = settings.take("agent").map(PathBuf::from);
        settings.done()?;
        Ok(Self { agent })
    }
}

pub struct ProcessProvider {
    shared: Arc<Shared>,
}

struct Shared {
    folder: PathBuf,
    agent: Agent,
    /// Those that are being made or removed. One at a time does so with a worker.
    busy: Mutex<IdSet<WorkerId>>,
    released: Notify,
    /// Those that this server started and whose end it has not noted yet.
    watched: Mutex<IdSet<WorkerId>>,
}

impl ProcessProvider {
    /// Keeps its workers in `folder`, which is made when it is needed.
    pub fn new(folder: PathBuf, settings: ProcessSettings) -> Self {
        let agent = Agent::new(settings.agent);
        let (busy, watched) = (Mutex::default(), Mutex::default());
        Self { shared: Arc::new(Shared { folder, agent, busy, released: Notify::new(), watched }) }
    }

    /// Reads and writes files beside the tasks of the runtime.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> io::Result<T> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| ProviderError::other(error.to_string()))
    }
}

impl Provider for ProcessProvider {
    fn capabilities(&self) -> ProviderCapabilities {
        let (cpu_millis, memory_bytes) = machine();
        ProviderCapabilities {
            isolation: Isolation::Process,
            images: false,
            gpus: 0,
            cpu_millis,
            memory_bytes,
            architectures: vec![std::env::consts::ARCH.to_owned()],
            startup: STARTUP,
        }
    }

    fn can_fulfil(&self, order: &Order) -> Result<(), String> {
        let (cpu_millis, memory_bytes) = machine();
        let refused = [
            (order.image.is_some(), "it starts processes, and has no images"),
            (order.gpus > 0, "it has no GPUs to give"),
            (!order.mounts.is_empty(), "its workers see the folders of this machine as they are; it mounts none"),
            (order.network.is_some(), "its workers are in the network of this machine and in no other"),
            (order.cpu_millis > cpu_millis, "this machine has fewer cores"),
            (order.memory_bytes > memory_bytes, "this machine has less memory"),
        ];
        refused.into_iter().find(|(so, _)| *so).map_or(Ok(()), |(_, why)| Err(why.to_owned()))
    }

    fn create_worker(&self, order: Arc<Order>, _progress: Progress) -> Answer<'_, ()> {
        async move {
            self.can_fulfil(&order).map_err(ProviderError::other)?;
            let worker = order.worker;
            let _busy = Busy::take(&self.shared, worker).await;
            if self.aside(move |shared| shared.is_there(worker)).await? {
                return Ok(());
            }
            // The process is started in the runtime, which will reap it.
            let child = match self.shared.spawn(&order) {
                Ok(child) => child,
                Err(error) => {
                    self.aside(move |shared| remove(&shared.home(worker))).await?;
                    return Err(ProviderError::other(error.to_string()));
                }
            };
            let pid = child.id();
            lock(&self.shared.watched).insert(worker);
            tokio::spawn(await_end(child, Arc::clone(&self.shared), worker));
            self.aside(move |shared| shared.write_life(worker, pid)).await
        }
        .boxed()
    }

    fn destroy_worker(&self, worker: WorkerId) -> Answer<'_, ()> {
        async move {
            let _busy = Busy::take(&self.shared, worker).await;
            self.aside(move |shared| shared.destroy(worker)).await
        }
        .boxed()
    }

    fn status(&self, worker: WorkerId) -> Answer<'_, Option<InstanceState>> {
        self.aside(move |shared| shared.state(worker)).boxed()
    }

    fn list(&self) -> Answer<'_, Vec<Instance>> {
        self.aside(Shared::list).boxed()
    }

    fn logs(&self, worker: WorkerId, bytes: usize) -> Answer<'_, String> {
        self.aside(move |shared| shared.log(worker, bytes)).boxed()
    }

    fn health_check(&self) -> BoxFuture<'_, ProviderHealth> {
        async move {
            match self.aside(Shared::check).await {
                Ok(()) => ProviderHealth::Healthy,
                Err(error) => ProviderHealth::Unhealthy(error.message),
            }
        }
        .boxed()
    }
}

/// The cores and the memory of this machine.
fn machine() -> (u64, u64) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let memory = sysinfo();
    (cores * 1000, memory.totalram * u64::from(memory.mem_unit))
}

impl Shared {
    fn home(&self, worker: WorkerId) -> PathBuf {
        self.folder.join(worker.to_string())
    }

    /// Whether the worker was made, so that nothing is to be done. A folder without any process was left by a server that
    /// died before it could start one.
    fn is_there(&self, worker: WorkerId) -> io::Result<bool> {
        let home = self.home(worker);
        if home.is_dir() && (read::<Life>(&home.join(LIFE)).is_some() || self.life(worker)?.is_some()) {
            return Ok(true);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(home.join(DATA))?;
        Ok(false)
    }

    fn spawn(&self, order: &Order) -> io::Result<Child> {
        let home = self.home(order.worker);
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(home.join(LOG))?;
        let (server, authority) = agent::on_this_machine(&order.server);
        let passed_on = PASSED_ON.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        Command::new(self.agent.path())
            .arg0("hodei")
            .args(agent::arguments(order))
            .env_clear()
            .envs(passed_on)
            .envs(agent::environment(order, server, authority))
            .env(kin::MARK, home.join(DATA))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // What is typed at the server's terminal is not meant for it.
            .process_group(0)
            .spawn()
            .map_err(|error| named(error, "cannot start the agent", self.agent.path()))
    }

    fn write_life(&self, worker: WorkerId, pid: Option<u32>) -> io::Result<()> {
        // One that has ended already is written down as it is; it is nobody's any more.
        let life = pid.and_then(|pid| Life::of(i32::try_from(pid).ok()?));
        write(&self.home(worker).join(LIFE), &life.unwrap_or_default())
    }

    /// The living agent. One that no server could write down is found by what it was started with.
    fn life(&self, worker: WorkerId) -> io::Result<Option<Life>> {
        let home = self.home(worker);
        if let Some(life) = read::<Life>(&home.join(LIFE)) {
            return Ok(Some(life).filter(Life::goes_on));
        }
        let found = kin::agent_in(&home.join(DATA)).and_then(Life::of);
        if let Some(life) = &found {
            write(&home.join(LIFE), life)?;
        }
        Ok(found)
    }

    fn state(&self, worker: WorkerId) -> io::Result<Option<InstanceState>> {
        if !self.home(worker).is_dir() {
            return Ok(None);
        }
        let being_made = lock(&self.busy).contains(&worker) && !self.home(worker).join(LIFE).exists();
        if being_made || lock(&self.watched).contains(&worker) || self.life(worker)?.is_some() {
            return Ok(Some(InstanceState::Alive));
        }
        let exit: Option<Exit> = read(&self.home(worker).join(EXIT));
        let output = self.log(worker, OUTPUT)?;
        Ok(Some(InstanceState::Exited(Exit { output, ..exit.unwrap_or_default() })))
    }

    fn list(&self) -> io::Result<Vec<Instance>> {
        let mut found = Vec::new();
        for name in names(&self.folder)? {
            if name.ends_with(GONE) {
                remove(&self.folder.join(&name))?;
            } else if let Ok(worker) = name.parse()
                && let Some(state) = self.state(worker)?
            {
                found.push(Instance { worker, state });
            }
        }
        Ok(found)
    }

    fn log(&self, worker: WorkerId, bytes: usize) -> io::Result<String> {
        let mut file = match File::open(self.home(worker).join(LOG)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
            opened => opened?,
        };
        // One more than asked for, which shows whether there is more.
        let from = file.metadata()?.len().saturating_sub(bytes as u64 + 1);
        file.seek(SeekFrom::Start(from))?;
        let mut end = Vec::new();
        io::Read::read_to_end(&mut file, &mut end)?;
        Ok(tail::of(&end, bytes))
    }

    fn destroy(&self, worker: WorkerId) -> io::Result<()> {
        let home = self.home(worker);
        if !home.is_dir() {
            return Ok(());
        }
        kin::end(self.life(worker)?.as_ref(), worker, &home.join(DATA))?;
        // Under another name first: whoever still notes how the agent ended finds no folder to put that in.
        let gone = self.folder.join(format!("{worker}{GONE}"));
        remove(&gone)?;
        fs::rename(&home, &gone)?;
        remove(&gone)
    }

    fn check(&self) -> io::Result<()> {
        let agent = self.agent.path();
        rustix::fs::access(agent, rustix::fs::Access::EXEC_OK)
            .map_err(|error| named(error.into(), "the agent cannot be run", agent))?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        rustix::fs::access(&self.folder, rustix::fs::Access::WRITE_OK)
            .map_err(|error| named(error.into(), "workers cannot be kept", &self.folder))
    }
}

/// Holds a worker while it is made or removed.
struct Busy {
    shared: Arc<Shared>,
    worker: WorkerId,
}

impl Busy {
    async fn take(shared: &Arc<Shared>, worker: WorkerId) -> Self {
        loop {
            let released = shared.released.notified();
            tokio::pin!(released);
            // From here on a release is not missed, even when it comes before the wait.
            released.as_mut().enable();
            if lock(&shared.busy).insert(worker) {
                return Self { shared: Arc::clone(shared), worker };
            }
            released.await;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.shared.busy).remove(&self.worker);
        self.shared.released.notify_waiters();
    }
}

fn lock(set: &Mutex<IdSet<WorkerId>>) -> MutexGuard<'_, IdSet<WorkerId>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes how an agent ended. Only the server that started it can see that.
async fn await_end(mut child: Child, shared: Arc<Shared>, worker: WorkerId) {
    if let Ok(status) = child.wait().await {
        let file = shared.home(worker).join(EXIT);
        // A folder that is gone was removed on purpose.
        _ = tokio::task::spawn_blocking(move || write(&file, &exit(status))).await;
    }
    lock(&shared.watched).remove(&worker);
}

fn exit(status: ExitStatus) -> Exit {
    Exit { code: status.code(), signal: status.signal(), ..Exit::default() }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.map_err(|error| named(error, "cannot remove", folder)),
    }
}

fn read<T: DeserializeOwned>(file: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// Written beside and renamed, so that nobody reads a half.
fn write(file: &Path, content: &impl Serialize) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(content)?)?;
    fs::rename(new, file)
}

fn named(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what} ({}): {error}", path.display()))
}

#[cfg(test)]
mod tests;
