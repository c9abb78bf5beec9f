use super::*;
use crate::{
    conformance::{self, Rig, for_each_check},
    process::life::Life,
};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

macro_rules! conformance_tests {
    ($($check:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            let Some(rig) = ProcessRig::start() else { return };
            conformance::$check(&rig).await;
            assert_eq!(rig.traces().await, [""; 0]);
        }
    )*};
}
for_each_check!(conformance_tests);

struct ProcessRig {
    folder: TempDir,
    agent: PathBuf,
    provider: ProcessProvider,
}

impl ProcessRig {
    fn start() -> Option<Self> {
        let agent = conformance::agent()?;
        let folder = tempfile::tempdir().unwrap();
        let provider = open(folder.path(), "ours", &agent);
        Some(Self { folder, agent, provider })
    }

    fn pid(&self, worker: WorkerId) -> Pid {
        let life = self.provider.shared.life(worker).unwrap().unwrap();
        Pid::from_raw(life.pid()).unwrap()
    }

    fn home(&self, worker: WorkerId) -> PathBuf {
        self.provider.shared.home(worker)
    }
}

fn open(folder: &Path, cluster: &str, agent: &Path) -> ProcessProvider {
    ProcessProvider::new(folder.join(cluster), ProcessSettings { agent: Some(agent.to_owned()) })
}

impl Rig for ProcessRig {
    fn provider(&self) -> &dyn Provider {
        &self.provider
    }

    fn reopened(&self) -> Box<dyn Provider> {
        Box::new(open(self.folder.path(), "ours", &self.agent))
    }

    fn neighbour(&self) -> Box<dyn Provider> {
        Box::new(open(self.folder.path(), "theirs", &self.agent))
    }

    fn order(&self) -> Order {
        conformance::order()
    }

    fn impossible(&self) -> Order {
        Order { image: Some("busybox".into()), ..self.order() }
    }

    fn kill(&self, worker: WorkerId) -> BoxFuture<'_, ()> {
        rustix::process::kill_process(self.pid(worker), Signal::KILL).unwrap();
        async {}.boxed()
    }

    fn in_sight(&self, worker: WorkerId) -> BoxFuture<'_, String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid(worker).as_raw_nonzero())).unwrap();
        let kept = conformance::texts(&self.home(worker));
        async move { format!("{}{kept}", String::from_utf8_lossy(&line)) }.boxed()
    }

    fn traces(&self) -> BoxFuture<'_, Vec<String>> {
        let folder = self.folder.path();
        let files = names(&folder.join("ours")).unwrap();
        let processes = kin::all_in(folder).into_iter().map(|pid| format!("process {pid}"));
        let all = files.into_iter().chain(processes).collect();
        async { all }.boxed()
    }
}

async fn made(rig: &ProcessRig) -> Order {
    let order = rig.order();
    rig.provider.create_worker(Arc::new(order.clone()), conformance::silent()).await.unwrap();
    order
}

#[tokio::test]
async fn the_servers_secrets_stay_with_the_server() {
    let Some(rig) = ProcessRig::start() else { return };
    let order = made(&rig).await;
    // It is empty for as long as the kernel loads the program.
    let path = format!("/proc/{}/environ", rig.pid(order.worker).as_raw_nonzero());
    let environment = loop {
        let read = fs::read(&path).unwrap();
        if !read.is_empty() {
            break read;
        }
        tokio::task::yield_now().await;
    };
    let names: Vec<String> = environment
        .split(|byte| *byte == 0)
        .filter_map(|pair| Some(String::from_utf8_lossy(pair).split_once('=')?.0.to_owned()))
        .filter(|name| !PASSED_ON.contains(&name.as_str()))
        .collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["HODEI_DATA", "HODEI_SERVER", "HODEI_TOKEN", "HODEI_WORKER_ID"]);
    rig.provider.destroy_worker(order.worker).await.unwrap();
}

#[tokio::test]
async fn one_that_no_server_could_write_down_is_found_and_removed() {
    let Some(rig) = ProcessRig::start() else { return };
    let order = made(&rig).await;
    let life = rig.provider.shared.life(order.worker).unwrap();
    fs::remove_file(rig.home(order.worker).join(LIFE)).unwrap();
    let next = rig.reopened();
    assert_eq!(next.status(order.worker).await, Ok(Some(InstanceState::Alive)));
    assert_eq!(read::<Life>(&rig.home(order.worker).join(LIFE)), life);
    next.destroy_worker(order.worker).await.unwrap();
    assert_eq!(rig.traces().await, [""; 0]);
}

#[tokio::test]
async fn what_a_server_that_died_had_only_begun_is_no_worker() {
    let Some(rig) = ProcessRig::start() else { return };
    let order = rig.order();
    fs::create_dir_all(rig.home(order.worker)).unwrap();
    let exited = InstanceState::Exited(Exit::default());
    assert_eq!(rig.provider.status(order.worker).await, Ok(Some(exited)));
    rig.provider.create_worker(Arc::new(order.clone()), conformance::silent()).await.unwrap();
    assert_eq!(rig.provider.status(order.worker).await, Ok(Some(InstanceState::Alive)));
    rig.provider.destroy_worker(order.worker).await.unwrap();
}

#[tokio::test]
async fn a_folder_whose_removal_was_cut_short_goes() {
    let Some(rig) = ProcessRig::start() else { return };
    let gone = rig.provider.shared.folder.join(format!("{}{GONE}", rig.order().worker));
    fs::create_dir_all(gone.join(DATA)).unwrap();
    assert_eq!(rig.provider.list().await, Ok(Vec::new()));
    assert!(!gone.exists());
}

#[tokio::test]
async fn a_provider_without_an_agent_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let provider = open(folder.path(), "ours", Path::new("/no/such/agent"));
    let health = provider.health_check().await;
    assert!(matches!(&health, ProviderHealth::Unhealthy(why) if why.contains("/no/such/agent")), "{health:?}");
    let order = Arc::new(conformance::order());
    let error = provider.create_worker(Arc::clone(&order), conformance::silent()).await.unwrap_err();
    assert!(error.message.contains("/no/such/agent"), "{error}");
    assert_eq!(provider.list().await, Ok(Vec::new()));
}

#[test]
fn settings_that_nobody_knows_are_refused() {
    let settings = |name: &str| BTreeMap::from([(name.to_owned(), "/agent".to_owned())]);
    assert_eq!(ProcessSettings::parse(&settings("agent")).unwrap().agent, Some("/agent".into()));
    assert!(ProcessSettings::parse(&settings("agnet")).unwrap_err().contains("agnet"));
}
