//! What every provider must do, tried with the real agent. Each check gets a provider of its own that has made nothing yet.

use crate::{Order, Progress, Provider, ServerAddress};
use futures::future::{BoxFuture, join_all};
use hodei_core::{
    id::WorkerId,
    provider::{Exit, Instance, InstanceState, ProviderHealth},
};
use std::{
    collections::BTreeMap,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt,
    net::{UnixListener, UnixStream},
};
use uuid::Uuid;

/// The program of the agents in tests, linked statically: `cargo xtask static` makes it.
const AGENT: &str = "HODEI_TEST_AGENT";
/// More than anything here takes, also on a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const TOKEN: &str = "one-time-token-of-a-test";

/// Hands the names of all checks to another macro.
macro_rules! for_each_check {
    ($then:ident) => {
        $then! {
            a_worker_comes_and_goes
            an_agent_is_told_who_it_is_and_by_which_token
            the_template_has_a_say_in_the_environment
            making_it_twice_makes_one
            removing_it_twice_or_never_made_is_fine
            one_that_fails_at_once_says_why
            one_that_is_killed_is_seen
            five_at_once
            another_cluster_sees_nothing
            what_is_left_by_a_former_server_is_found
            the_token_is_nowhere_to_be_seen
            what_it_cannot_do_it_refuses
            logs_are_cut_to_what_was_asked_for
            it_is_healthy
        }
    };
}

pub(crate) use for_each_check;

/// A provider under test, and what tests need besides.
pub(crate) trait Rig: Sync {
    fn provider(&self) -> &dyn Provider;

    /// The same, as a server has it that was started again.
    fn reopened(&self) -> Box<dyn Provider>;

    /// One of another cluster in the same place.
    fn neighbour(&self) -> Box<dyn Provider>;

    /// A worker that it can make.
    fn order(&self) -> Order;

    /// An order that it cannot fulfil.
    fn impossible(&self) -> Order;

    /// SIGKILL for the agent, from outside.
    fn kill(&self, worker: WorkerId) -> BoxFuture<'_, ()>;

    /// All that others on the machine can see of a worker without being its owner.
    fn in_sight(&self, worker: WorkerId) -> BoxFuture<'_, String>;

    /// Whatever is left in the end.
    fn traces(&self) -> BoxFuture<'_, Vec<String>>;
}

/// The agent to test with; none where it was not built, which on CI is a failure.
pub(crate) fn agent() -> Option<PathBuf> {
    wanted(AGENT).map(PathBuf::from)
}

/// A variable that tests need; none where it is not set, which on CI is a failure.
pub(crate) fn wanted(variable: &str) -> Option<String> {
    let found = std::env::var(variable).ok();
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{variable} must be set on CI");
        #[allow(clippy::print_stderr)]
        {
            eprintln!("skipped: {variable} is not set");
        }
    }
    found
}

pub(crate) fn order() -> Order {
    Order {
        worker: WorkerId(Uuid::new_v4()),
        template: "test".into(),
        image: None,
        cpu_millis: 0,
        memory_bytes: 0,
        gpus: 0,
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        token: TOKEN.to_owned(),
        server: ServerAddress::Socket("/nowhere/hodei.sock".into()),
        mounts: Vec::new(),
        network: None,
    }
}

pub(crate) fn silent() -> Progress {
    Arc::new(|_| {})
}

/// In place of a server: hears what an agent says first.
pub(crate) struct Ear {
    folder: TempDir,
    path: PathBuf,
    listener: UnixListener,
}

impl Ear {
    pub(crate) fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hodei.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        Self { folder, path, listener }
    }

    pub(crate) fn address(&self) -> ServerAddress {
        ServerAddress::Socket(self.path.clone())
    }

    /// Also those who are not its owner.
    pub(crate) fn let_everybody_in(&self) {
        std::fs::set_permissions(self.folder.path(), Permissions::from_mode(0o755)).expect("permissions");
        std::fs::set_permissions(&self.path, Permissions::from_mode(0o666)).expect("permissions");
    }

    /// Waits until somebody who connects has said all of this.
    pub(crate) async fn hear(&self, words: &[&str]) {
        let heard = async {
            loop {
                let (stream, _) = self.listener.accept().await.expect("a connection");
                if says(stream, words).await {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("an agent that comes");
    }
}

async fn says(mut stream: UnixStream, words: &[&str]) -> bool {
    let mut heard = Vec::new();
    let contains = |heard: &[u8], word: &str| heard.windows(word.len()).any(|part| part == word.as_bytes());
    while !words.iter().all(|word| contains(&heard, word)) {
        match stream.read_buf(&mut heard).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
    true
}

async fn create(provider: &dyn Provider, order: &Order) {
    provider.create_worker(Arc::new(order.clone()), silent()).await.expect("made");
}

async fn destroy(provider: &dyn Provider, worker: WorkerId) {
    provider.destroy_worker(worker).await.expect("removed");
    assert_eq!(provider.status(worker).await, Ok(None));
}

async fn list(provider: &dyn Provider) -> Vec<Instance> {
    provider.list().await.expect("a list")
}

/// Waits until it has ended, and says how.
pub(crate) async fn exit(provider: &dyn Provider, worker: WorkerId) -> Exit {
    let ended = async {
        loop {
            match provider.status(worker).await.expect("a status") {
                Some(InstanceState::Exited(exit)) => return exit,
                Some(InstanceState::Alive) => tokio::time::sleep(LOOK_AGAIN).await,
                None => panic!("it is gone"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("an end")
}

pub(crate) async fn a_worker_comes_and_goes(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    assert_eq!(list(provider).await, []);
    assert_eq!(provider.status(order.worker).await, Ok(None));
    create(provider, &order).await;
    assert_eq!(list(provider).await, [Instance { worker: order.worker, state: InstanceState::Alive }]);
    assert_eq!(provider.status(order.worker).await, Ok(Some(InstanceState::Alive)));
    destroy(provider, order.worker).await;
    assert_eq!(list(provider).await, []);
}

pub(crate) async fn an_agent_is_told_who_it_is_and_by_which_token(rig: &dyn Rig) {
    let ear = Ear::open();
    let order = Order { server: ear.address(), arguments: vec!["--name".into(), "named-so".into()], ..rig.order() };
    create(rig.provider(), &order).await;
    ear.hear(&[&order.token, &order.worker.to_string(), "named-so"]).await;
    destroy(rig.provider(), order.worker).await;
}

pub(crate) async fn the_template_has_a_say_in_the_environment(rig: &dyn Rig) {
    let (provider, order, ear) = (rig.provider(), rig.order(), Ear::open());
    let environment = BTreeMap::from([("HODEI_CONFIG".to_owned(), "/no/such/file".to_owned())]);
    create(provider, &Order { environment, ..order.clone() }).await;
    let exit = exit(provider, order.worker).await;
    assert!(exit.output.contains("/no/such/file"), "{exit:?}");
    destroy(provider, order.worker).await;
    // But not in who the worker is.
    let environment = BTreeMap::from([("HODEI_WORKER_ID".to_owned(), Uuid::new_v4().to_string())]);
    let order = Order { server: ear.address(), environment, ..order };
    create(provider, &order).await;
    ear.hear(&[&order.worker.to_string()]).await;
    destroy(provider, order.worker).await;
}

pub(crate) async fn making_it_twice_makes_one(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    let again = (0..3).map(|_| create(provider, &order));
    join_all(again).await;
    create(provider, &order).await;
    assert_eq!(list(provider).await, [Instance { worker: order.worker, state: InstanceState::Alive }]);
    destroy(provider, order.worker).await;
    assert_eq!(rig.traces().await, [""; 0]);
}

pub(crate) async fn removing_it_twice_or_never_made_is_fine(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    destroy(provider, order.worker).await;
    create(provider, &order).await;
    join_all((0..3).map(|_| destroy(provider, order.worker))).await;
    destroy(provider, order.worker).await;
    assert_eq!(provider.logs(order.worker, 100).await, Ok(String::new()));
    assert_eq!(rig.traces().await, [""; 0]);
}

pub(crate) async fn one_that_fails_at_once_says_why(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    create(provider, &Order { arguments: vec!["--no-such-option".into()], ..order.clone() }).await;
    let exit = exit(provider, order.worker).await;
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.output.contains("--no-such-option"), "{exit:?}");
    let logs = provider.logs(order.worker, 10_000).await.expect("logs");
    assert!(logs.contains("--no-such-option"), "{logs}");
    assert_eq!(list(provider).await, [Instance { worker: order.worker, state: InstanceState::Exited(exit) }]);
    destroy(provider, order.worker).await;
}

pub(crate) async fn one_that_is_killed_is_seen(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    create(provider, &order).await;
    rig.kill(order.worker).await;
    let exit = exit(provider, order.worker).await;
    assert_eq!((exit.code, exit.signal, exit.out_of_memory), (None, Some(9), false));
    // It is there still, so it is not made again.
    create(provider, &order).await;
    assert!(matches!(provider.status(order.worker).await, Ok(Some(InstanceState::Exited(_)))));
    destroy(provider, order.worker).await;
}

pub(crate) async fn five_at_once(rig: &dyn Rig) {
    let orders: Vec<Order> = (0..5).map(|_| rig.order()).collect();
    join_all(orders.iter().map(|order| create(rig.provider(), order))).await;
    let mut listed = list(rig.provider()).await;
    listed.sort_by_key(|instance| instance.worker);
    let mut expected: Vec<WorkerId> = orders.iter().map(|order| order.worker).collect();
    expected.sort();
    let alive = |worker| Instance { worker, state: InstanceState::Alive };
    assert_eq!(listed, expected.into_iter().map(alive).collect::<Vec<_>>());
    join_all(orders.iter().map(|order| destroy(rig.provider(), order.worker))).await;
    assert_eq!(list(rig.provider()).await, []);
    assert_eq!(rig.traces().await, [""; 0]);
}

pub(crate) async fn another_cluster_sees_nothing(rig: &dyn Rig) {
    let (provider, neighbour, order) = (rig.provider(), rig.neighbour(), rig.order());
    create(provider, &order).await;
    assert_eq!(list(neighbour.as_ref()).await, []);
    assert_eq!(neighbour.status(order.worker).await, Ok(None));
    destroy(neighbour.as_ref(), order.worker).await;
    assert_eq!(provider.status(order.worker).await, Ok(Some(InstanceState::Alive)));
    destroy(provider, order.worker).await;
}

pub(crate) async fn what_is_left_by_a_former_server_is_found(rig: &dyn Rig) {
    let (order, ended) = (rig.order(), rig.order());
    create(rig.provider(), &order).await;
    create(rig.provider(), &ended).await;
    rig.kill(ended.worker).await;
    exit(rig.provider(), ended.worker).await;
    let provider = rig.reopened();
    let provider = provider.as_ref();
    assert_eq!(provider.status(order.worker).await, Ok(Some(InstanceState::Alive)));
    assert!(matches!(provider.status(ended.worker).await, Ok(Some(InstanceState::Exited(_)))));
    assert_eq!(list(provider).await.len(), 2);
    create(provider, &order).await;
    destroy(provider, order.worker).await;
    destroy(provider, ended.worker).await;
    assert_eq!(rig.traces().await, [""; 0]);
}

pub(crate) async fn the_token_is_nowhere_to_be_seen(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    create(provider, &order).await;
    let listed = format!("{:?}", list(provider).await);
    let logs = provider.logs(order.worker, 100_000).await.expect("logs");
    for seen in [format!("{order:?}"), listed, logs, rig.in_sight(order.worker).await] {
        assert!(!seen.contains(TOKEN), "{seen}");
    }
    destroy(provider, order.worker).await;
}

pub(crate) async fn what_it_cannot_do_it_refuses(rig: &dyn Rig) {
    let provider = rig.provider();
    provider.can_fulfil(&rig.order()).expect("an order like any");
    let too_many = Order { gpus: provider.capabilities().gpus + 1, ..rig.order() };
    for order in [rig.impossible(), too_many] {
        let why = provider.can_fulfil(&order).expect_err("more than it can");
        assert!(!why.is_empty());
        provider.create_worker(Arc::new(order.clone()), silent()).await.expect_err("refused");
        assert_eq!(provider.status(order.worker).await, Ok(None));
    }
}

pub(crate) async fn logs_are_cut_to_what_was_asked_for(rig: &dyn Rig) {
    let (provider, order) = (rig.provider(), rig.order());
    create(provider, &Order { arguments: vec!["--no-such-option".into()], ..order.clone() }).await;
    exit(provider, order.worker).await;
    let whole = provider.logs(order.worker, 100_000).await.expect("logs");
    let end = provider.logs(order.worker, 40).await.expect("logs");
    assert!(whole.len() > 40 && end.len() <= 40 && whole.ends_with(&end) && !end.is_empty(), "{whole}\n---\n{end}");
    destroy(provider, order.worker).await;
}

pub(crate) async fn it_is_healthy(rig: &dyn Rig) {
    assert_eq!(rig.provider().health_check().await, ProviderHealth::Healthy);
    let capabilities = rig.provider().capabilities();
    assert!(capabilities.cpu_millis >= 1000 && capabilities.memory_bytes > 1 << 20 && capabilities.startup.0 > 0);
    assert_eq!(capabilities.architectures, [std::env::consts::ARCH]);
}

/// The text of all files in a folder.
pub(crate) fn texts(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => all.push_str(&texts(&entry.path())),
            false => all.push_str(&String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap_or_default())),
        }
    }
    all
}
