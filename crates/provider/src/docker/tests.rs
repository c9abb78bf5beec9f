mod registry;

use super::*;
use crate::conformance::{self, Ear, Rig, for_each_check};
use bollard::{
    Docker,
    exec::StartExecResults,
    models::{ContainerCreateBody, ExecConfig},
    query_parameters::{CreateContainerOptions, KillContainerOptions, ListContainersOptions, RemoveImageOptions},
};
use futures::StreamExt;
use hodei_core::template::Mount;
use registry::Registry;
use std::{collections::HashMap, fs, time::Instant};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixListener, UnixStream},
};
use uuid::Uuid;

/// Where an engine listens that has the images of the tests: `cargo xtask test` starts one.
const ENGINE: &str = "HODEI_TEST_DOCKER";
const IMAGE: &str = "hodei-test/busybox:1";
/// The same image for a user who is not root.
const NOBODY: &str = "hodei-test/nobody:1";
/// How long tests wait for an engine that does not answer.
const SHORT: Duration = Duration::from_millis(500);

macro_rules! conformance_tests {
    ($($check:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            let Some(rig) = DockerRig::start().await else { return };
            conformance::$check(&rig).await;
            assert_eq!(rig.traces().await, [""; 0]);
        }
    )*};
}
for_each_check!(conformance_tests);

struct DockerRig {
    cluster: String,
    provider: DockerProvider,
    docker: Docker,
}

impl DockerRig {
    async fn start() -> Option<Self> {
        let (agent, host) = (conformance::agent()?, conformance::wanted(ENGINE)?);
        Some(Self::with(DockerSettings { agent: Some(agent), host, ..settings() }).await)
    }

    async fn with(settings: DockerSettings) -> Self {
        let cluster = Uuid::new_v4().to_string();
        let provider = DockerProvider::new(&cluster, settings).unwrap();
        provider.health_check().await;
        let docker = provider.engine.docker().unwrap();
        Self { cluster, provider, docker }
    }

    fn name(&self, worker: WorkerId) -> String {
        container::name(&self.cluster, worker)
    }

    async fn make(&self, order: &Order) -> Result<(), ProviderError> {
        self.provider.create_worker(Arc::new(order.clone()), conformance::silent()).await
    }

    async fn remove(&self, order: &Order) {
        self.provider.destroy_worker(order.worker).await.unwrap();
        assert_eq!(self.traces().await, [""; 0]);
    }

    async fn exit(&self, worker: WorkerId) -> Exit {
        conformance::exit(&self.provider, worker).await
    }

    async fn await_log(&self, worker: WorkerId, text: &str) {
        let said = async {
            while !self.provider.logs(worker, 100_000).await.unwrap().contains(text) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(conformance::PATIENCE, said).await.unwrap();
    }
}

fn settings() -> DockerSettings {
    DockerSettings { image: Some(IMAGE.to_owned()), network: "none".to_owned(), ..DockerSettings::default() }
}

impl Rig for DockerRig {
    fn provider(&self) -> &dyn Provider {
        &self.provider
    }

    fn reopened(&self) -> Box<dyn Provider> {
        Box::new(DockerProvider::new(&self.cluster, self.provider.settings.clone()).unwrap())
    }

    fn neighbour(&self) -> Box<dyn Provider> {
        Box::new(DockerProvider::new(&Uuid::new_v4().to_string(), self.provider.settings.clone()).unwrap())
    }

    fn order(&self) -> Order {
        // The folder of the socket must be there to be mounted.
        Order { server: ServerAddress::Socket("/dev/hodei.sock".into()), ..conformance::order() }
    }

    fn impossible(&self) -> Order {
        let server = ServerAddress::Url { url: "http://127.0.0.1:7070".into(), authority: None };
        Order { server, ..self.order() }
    }

    fn kill(&self, worker: WorkerId) -> BoxFuture<'_, ()> {
        async move {
            let name = self.name(worker);
            self.docker.kill_container(&name, None::<KillContainerOptions>).await.unwrap();
        }
        .boxed()
    }

    fn in_sight(&self, worker: WorkerId) -> BoxFuture<'_, String> {
        async move {
            let filters = HashMap::from([("name".to_owned(), vec![self.name(worker)])]);
            let options = ListContainersOptions { filters: Some(filters), ..ListContainersOptions::default() };
            let found = self.docker.list_containers(Some(options)).await.unwrap();
            assert_eq!(found.len(), 1);
            format!("{found:?}")
        }
        .boxed()
    }

    fn traces(&self) -> BoxFuture<'_, Vec<String>> {
        async move {
            let left = self.provider.engine.list(&format!("{CLUSTER}={}", self.cluster)).await.unwrap();
            left.into_iter().map(|container| container.id).collect()
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_worker_reaches_its_socket_in_every_network_and_as_anybody() {
    let Some(rig) = DockerRig::start().await else { return };
    for (network, image) in [("none", IMAGE), ("host", IMAGE), ("bridge", IMAGE), ("none", NOBODY)] {
        let ear = Ear::open();
        ear.let_everybody_in();
        let order =
            Order { server: ear.address(), network: Some(network.into()), image: Some(image.into()), ..rig.order() };
        rig.make(&order).await.unwrap();
        ear.hear(&[&order.token]).await;
        assert_eq!(rig.provider.status(order.worker).await, Ok(Some(InstanceState::Alive)), "{network} {image}");
        rig.remove(&order).await;
    }
}

#[tokio::test]
async fn the_image_keeps_its_environment_and_loses_its_command() {
    let Some(rig) = DockerRig::start().await else { return };
    let environment = BTreeMap::from([("MODE".to_owned(), "fast".to_owned())]);
    let order = Order { environment, cpu_millis: 500, memory_bytes: 64 << 20, ..rig.order() };
    rig.make(&order).await.unwrap();
    let found = rig.provider.engine.inspect(&rig.name(order.worker)).await.unwrap().unwrap();
    let (config, host) = (found.config.unwrap(), found.host_config.unwrap());
    let environment = config.env.unwrap();
    for variable in ["COLOUR=blue", "PATH=/bin", "MODE=fast", "HODEI_SERVER=unix:/run/hodei/hodei.sock"] {
        assert!(environment.iter().any(|found| found == variable), "{variable}: {environment:?}");
    }
    assert_eq!(host.nano_cpus, Some(500_000_000));
    assert_eq!((host.memory, host.memory_swap), (Some(64 << 20), Some(64 << 20)));
    assert_eq!((host.pids_limit, host.auto_remove), (Some(i64::from(PIDS)), Some(false)));
    assert!(found.mounts.unwrap().iter().all(|mount| mount.rw == Some(false)));
    let labels = config.labels.unwrap();
    assert_eq!(labels.get("hodei.template").map(String::as_str), Some("test"));
    assert!(labels.get("hodei.created").is_some_and(|created| created.parse::<u64>().is_ok()));
    rig.remove(&order).await;
}

#[tokio::test]
async fn folders_of_the_machine_can_be_read_in_the_worker() {
    let Some(rig) = DockerRig::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("worker.toml"), "this_is_no_setting = 1\n").unwrap();
    let mount = Mount { source: folder.path().display().to_string(), target: "/etc/from-outside".into() };
    let environment = BTreeMap::from([("HODEI_CONFIG".to_owned(), "/etc/from-outside/worker.toml".to_owned())]);
    let order = Order { mounts: vec![mount], environment, ..rig.order() };
    rig.make(&order).await.unwrap();
    let exit = rig.exit(order.worker).await;
    assert!(exit.output.contains("this_is_no_setting"), "{exit:?}");
    rig.remove(&order).await;
    let nowhere = Mount { source: "/no/such/folder".into(), target: "/data".into() };
    let error = rig.make(&Order { mounts: vec![nowhere], ..rig.order() }).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Other);
    assert!(error.message.contains("/no/such/folder"), "{error}");
    assert_eq!(rig.traces().await, [""; 0]);
}

#[tokio::test]
async fn one_that_needs_more_memory_than_it_has_is_known_for_it() {
    let Some(rig) = DockerRig::start().await else { return };
    let order = Order { memory_bytes: 16 << 20, ..rig.order() };
    rig.make(&order).await.unwrap();
    let hog = ["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"].map(str::to_owned).to_vec();
    let hog = ExecConfig { cmd: Some(hog), attach_stderr: Some(true), ..ExecConfig::default() };
    let hog = rig.docker.create_exec(&rig.name(order.worker), hog).await.unwrap();
    let StartExecResults::Attached { output, .. } = rig.docker.start_exec(&hog.id, None).await.unwrap() else {
        panic!("not attached")
    };
    output.for_each(|_| async {}).await;
    rig.kill(order.worker).await;
    let exit = rig.exit(order.worker).await;
    assert!(exit.out_of_memory, "{exit:?}");
    rig.remove(&order).await;
}

#[tokio::test]
async fn an_engine_elsewhere_gets_a_copy_of_the_agent() {
    let Some(rig) = DockerRig::start().await else { return };
    let socket = conformance::wanted(ENGINE).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut outer, _)) = listener.accept().await {
            let mut inner = UnixStream::connect(socket.trim_start_matches("unix://")).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut outer, &mut inner).await });
        }
    });
    let rig = DockerRig::with(DockerSettings { host, ..rig.provider.settings.clone() }).await;
    assert!(rig.provider.can_fulfil(&rig.order()).unwrap_err().contains("socket"));
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("ca.pem");
    fs::write(&authority, "-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n").unwrap();
    let server = ServerAddress::Url { url: "https://hodei.invalid:7070".into(), authority: Some(authority) };
    let order = Order { server, ..rig.order() };
    for image in [IMAGE, NOBODY] {
        let order = Order { image: Some(image.into()), worker: WorkerId(Uuid::new_v4()), ..order.clone() };
        rig.make(&order).await.unwrap();
        // It runs, and has found the authority, without which it would not try.
        rig.await_log(order.worker, "no server answers at https://hodei.invalid").await;
        rig.remove(&order).await;
    }
}

#[tokio::test]
async fn a_container_that_was_made_and_never_started_is_started() {
    let Some(rig) = DockerRig::start().await else { return };
    let order = rig.order();
    let agent = rig.provider.agent.for_others();
    let wanted = container::Wanted {
        cluster: &rig.cluster,
        order: &order,
        image: IMAGE,
        network: "none",
        agent: agent.as_deref(),
        pids: 100,
    };
    assert!(rig.provider.engine.create(&rig.name(order.worker), container::body(&wanted)).await.unwrap());
    rig.make(&order).await.unwrap();
    let found = rig.provider.engine.inspect(&rig.name(order.worker)).await.unwrap().unwrap();
    assert_eq!(found.state.unwrap().running, Some(true));
    rig.remove(&order).await;
}

#[tokio::test]
async fn a_strangers_container_is_not_taken_for_a_worker() {
    let Some(rig) = DockerRig::start().await else { return };
    let order = rig.order();
    let name = rig.name(order.worker);
    let options = CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
    let body = ContainerCreateBody { image: Some(IMAGE.into()), ..ContainerCreateBody::default() };
    rig.docker.create_container(Some(options), body).await.unwrap();
    let error = rig.make(&order).await.unwrap_err();
    assert!(error.message.contains("not of this cluster"), "{error}");
    rig.provider.engine.remove(&name).await.unwrap();
}

#[tokio::test]
async fn what_could_not_be_started_is_not_left_behind() {
    let Some(rig) = DockerRig::start().await else { return };
    let order = Order { network: Some("no-such-network".into()), ..rig.order() };
    let error = rig.make(&order).await.unwrap_err();
    assert!(error.class == ErrorClass::Other && error.message.contains("no-such-network"), "{error:?}");
    assert_eq!(rig.traces().await, [""; 0]);
}

#[tokio::test]
async fn an_image_that_does_not_exist_is_the_images_fault() {
    let Some(rig) = DockerRig::start().await else { return };
    for (pull, image) in [
        (PullPolicy::Never, "hodei-test/none:1"),
        (PullPolicy::Missing, "NOT/an:image"),
        (PullPolicy::Missing, "../containers/json"),
    ] {
        let rig = DockerRig::with(DockerSettings { pull, ..rig.provider.settings.clone() }).await;
        let order = Order { image: Some(image.into()), ..rig.order() };
        let error = rig.make(&order).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Image, "{image} {error}");
        assert_eq!(rig.provider.status(order.worker).await, Ok(None));
    }
}

#[tokio::test]
async fn an_image_is_pulled_and_needs_nothing_in_it() {
    let Some(rig) = DockerRig::start().await else { return };
    let registry = Registry::open(1, Duration::ZERO).await;
    let image = registry.image();
    let said = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&said);
    let progress: Progress = Arc::new(move |text: &str| hears.lock().unwrap().push(text.to_owned()));
    let ear = Ear::open();
    let order = Order { server: ear.address(), image: Some(image.as_str().into()), ..rig.order() };
    rig.provider.create_worker(Arc::new(order.clone()), progress).await.unwrap();
    ear.hear(&[&order.token]).await;
    let said = said.lock().unwrap().join("\n");
    assert!(said.contains(&format!("pulling {image}")) && said.contains(&format!("pulled {image}")), "{said}");
    assert!(said.contains(&format!("pulling {image}: 1 of 1 layers")), "{said}");
    rig.remove(&order).await;
    rig.docker.remove_image(&image, None::<RemoveImageOptions>, None).await.unwrap();
}

#[tokio::test]
async fn registries_have_their_own_reasons() {
    let Some(rig) = DockerRig::start().await else { return };
    let registry = Registry::open(1, Duration::ZERO).await;
    let nobody_listens = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    for (image, class) in [
        (format!("{}/none:1", registry.address), ErrorClass::Image),
        (format!("{}/secret:1", registry.address), ErrorClass::Auth),
        (format!("{nobody_listens}/none:1"), ErrorClass::Other),
    ] {
        let order = Order { image: Some(image.as_str().into()), ..rig.order() };
        let error = rig.make(&order).await.unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(error.message.contains(&image), "{error}");
        assert_eq!(rig.traces().await, [""; 0]);
    }
}

#[tokio::test]
async fn an_agent_that_needs_libraries_is_not_well() {
    let Some(rig) = DockerRig::start().await else { return };
    // Rust's tests are linked dynamically.
    let agent = Some(std::env::current_exe().unwrap());
    let rig = DockerRig::with(DockerSettings { agent, ..rig.provider.settings.clone() }).await;
    let health = rig.provider.health_check().await;
    assert!(matches!(&health, ProviderHealth::Degraded(why) if why.contains("statically")), "{health:?}");
    let order = rig.order();
    rig.make(&order).await.unwrap();
    let exit = rig.exit(order.worker).await;
    assert!(exit.output.contains("no such file or directory"), "{exit:?}");
    rig.remove(&order).await;
}

#[tokio::test]
async fn an_engine_that_is_gone_or_hangs_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let [missing, dead, frozen] = ["missing", "dead", "frozen"].map(|name| folder.path().join(name));
    drop(UnixListener::bind(&dead).unwrap());
    // It takes connections, as the system does for a process that was stopped, and says nothing.
    let _frozen = UnixListener::bind(&frozen).unwrap();
    for socket in [missing, dead, frozen] {
        let host = format!("unix://{}", socket.display());
        let settings = DockerSettings { host, timeout: SHORT, ..settings() };
        let provider = DockerProvider::new("test", settings).unwrap();
        let order = Arc::new(Order { server: ServerAddress::Socket("/dev/hodei.sock".into()), ..conformance::order() });
        let began = Instant::now();
        let errors = [
            provider.create_worker(Arc::clone(&order), conformance::silent()).await.unwrap_err(),
            provider.destroy_worker(order.worker).await.unwrap_err(),
            provider.status(order.worker).await.unwrap_err(),
            provider.list().await.unwrap_err(),
            provider.logs(order.worker, 100).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
        }
        assert!(matches!(provider.health_check().await, ProviderHealth::Unhealthy(_)));
        assert!(began.elapsed() < 10 * SHORT, "{:?}", began.elapsed());
    }
}

#[test]
fn settings_are_read_and_checked() {
    let read = |settings: &[(&str, &str)]| {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = DockerSettings::parse(&settings.collect())?;
        DockerProvider::new("cluster", settings).map(|provider| provider.settings)
    };
    let all = read(&[
        ("host", "http://10.0.0.1:2375"),
        ("network", "host"),
        ("image", "busybox"),
        ("agent", "/agent"),
        ("pull", "always"),
        ("timeout", "5s"),
        ("pids", "100"),
        ("gpus", "2"),
    ])
    .unwrap();
    assert_eq!((all.host.as_str(), all.network.as_str()), ("http://10.0.0.1:2375", "host"));
    assert_eq!((all.image.as_deref(), all.agent), (Some("busybox"), Some("/agent".into())));
    assert_eq!((all.pull, all.timeout, all.pids, all.gpus), (PullPolicy::Always, Duration::from_secs(5), 100, 2));
    assert_eq!(read(&[]).unwrap().host, HOST);
    for wrong in
        [("pull", "sometimes"), ("host", "ssh://a"), ("timeout", "soon"), ("pids", "-1"), ("image", "a b"), ("x", "y")]
    {
        assert!(read(&[wrong]).is_err(), "{wrong:?}");
    }
    assert!(DockerProvider::new("two words", DockerSettings::default()).is_err());
}

#[test]
fn loopback_is_for_those_in_the_same_network() {
    for (url, is) in [
        ("http://127.0.0.1:7070", true),
        ("https://[::1]:7070", true),
        ("http://localhost", true),
        ("http://10.0.0.1:7070", false),
        ("https://hodei.example", false),
    ] {
        assert_eq!(is_loopback(url), is, "{url}");
    }
}
