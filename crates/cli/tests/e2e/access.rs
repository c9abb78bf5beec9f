//! Who may do what: tokens and their roles, TLS, those who guess, and the log of who did what.

use crate::{
    client::{Client, shell},
    cluster::Cluster,
    process::{Home, Ran, run, until},
    tasks::Running,
};
use hodei_api::v1::{self, Role};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};
use tonic::{Code, Status};

const ROLES: [Role; 4] = [Role::Viewer, Role::Submitter, Role::Operator, Role::Admin];

fn denied<T: std::fmt::Debug>(outcome: Result<T, Status>, code: Code, part: &str) {
    let status = outcome.expect_err(part);
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(part), "'{part}' is not in: {}", status.message());
}

/// One call of each class, with the least role that may make it.
async fn calls(client: &Client) -> Vec<(Role, &'static str, Result<(), Status>)> {
    let nobody = || "00000000-0000-7000-8000-000000000000".to_owned();
    let found = |outcome: Result<(), Status>| match outcome {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        outcome => outcome,
    };
    let list = client.jobs().list_jobs(v1::ListJobsRequest::default()).await.map(drop);
    let log = client.logs().get_logs(v1::GetLogsRequest { job_id: nobody(), ..Default::default() }).await.map(drop);
    let workers = client.admin().list_workers(v1::ListWorkersRequest {}).await.map(drop);
    let submit = client.jobs().queue_job(v1::QueueJobRequest { job: Some(shell("true")) }).await.map(drop);
    let cancel = client.cancel(&nobody()).await.map(drop);
    let retry = client.jobs().retry_job(v1::RetryJobRequest { job_id: nobody() }).await.map(drop);
    let many = v1::CancelJobsRequest {
        filter: Some(v1::JobFilter { queue: "none".into(), ..Default::default() }),
        ..Default::default()
    };
    let many = client.jobs().cancel_jobs(many).await.map(drop);
    let pause = client.queues().pause_queue(v1::PauseQueueRequest { name: "mail".into() }).await.map(drop);
    let worker = client.admin().create_worker_token(v1::CreateWorkerTokenRequest::default()).await.map(drop);
    let drain = client
        .admin()
        .drain_worker(v1::DrainWorkerRequest { worker_id: nobody(), ..Default::default() })
        .await
        .map(drop);
    let tokens = client.access().list_api_tokens(v1::ListApiTokensRequest {}).await.map(drop);
    let audit = client.access().list_audit(v1::ListAuditRequest::default()).await.map(drop);
    vec![
        (Role::Viewer, "jobs.list", list),
        (Role::Viewer, "logs.get", found(log)),
        (Role::Viewer, "workers.list", workers),
        (Role::Submitter, "jobs.submit", submit),
        (Role::Submitter, "jobs.cancel", found(cancel)),
        (Role::Submitter, "jobs.retry", found(retry)),
        (Role::Operator, "jobs.cancel_matching", many),
        (Role::Operator, "queues.pause", pause),
        (Role::Operator, "workers.token", worker),
        (Role::Operator, "workers.drain", found(drain)),
        (Role::Admin, "tokens.list", tokens),
        (Role::Admin, "audit.list", audit),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_may_do_its_part_and_no_more() {
    let cluster = Cluster::start().await;
    for role in ROLES {
        let (token, _) = cluster.client.api_token(role, 0).await;
        for (least, call, outcome) in calls(&Client::of_address(&cluster.grpc, &token)).await {
            let may = ROLES.iter().position(|r| *r == role) >= ROLES.iter().position(|r| *r == least);
            match may {
                true => outcome.unwrap_or_else(|status| panic!("{role:?} may do {call}: {status:?}")),
                false => {
                    let name = least.as_str_name().trim_start_matches("ROLE_").to_ascii_lowercase();
                    denied(outcome, Code::PermissionDenied, &format!("needs the role {name}"));
                }
            }
        }
    }
    for (_, call, outcome) in calls(&Client::anonymous(&cluster.grpc)).await {
        assert_eq!(outcome.expect_err(call).code(), Code::Unauthenticated, "{call}");
    }
    for (_, call, outcome) in calls(&cluster.client).await {
        outcome.unwrap_or_else(|status| panic!("the socket is the owner's, {call}: {status:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_missing_wrong_expired_or_revoked_open_nothing() {
    let mut cluster = Cluster::start().await;
    let list = async |grpc: &str, token: &str| {
        Client::of_address(grpc, token).jobs().list_jobs(v1::ListJobsRequest::default()).await
    };
    let missing = Client::anonymous(&cluster.grpc).jobs().list_jobs(v1::ListJobsRequest::default()).await;
    denied(missing, Code::Unauthenticated, "hodei token create api");
    denied(list(&cluster.grpc, "hodei_wrong").await, Code::Unauthenticated, "not known");
    let (brief, _) = cluster.client.api_token(Role::Admin, 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    denied(list(&cluster.grpc, &brief).await, Code::Unauthenticated, "expired");
    let (gone, info) = cluster.client.api_token(Role::Admin, 0).await;
    list(&cluster.grpc, &gone).await.expect("it is good until it is revoked");
    let revoke = || v1::RevokeApiTokenRequest { id: info.id.clone() };
    cluster.access().revoke_api_token(revoke()).await.expect("revoked");
    cluster.access().revoke_api_token(revoke()).await.expect("still revoked");
    denied(list(&cluster.grpc, &gone).await, Code::Unauthenticated, "revoked");
    let unknown = v1::RevokeApiTokenRequest { id: uuid::Uuid::now_v7().to_string() };
    assert_eq!(cluster.access().revoke_api_token(unknown).await.expect_err("nobody").code(), Code::NotFound);

    // All that is known of them outlives a crash, and none of it is a token.
    let (kept, _) = cluster.client.api_token(Role::Viewer, 0).await;
    cluster.crash_server().await;
    list(&cluster.grpc, &kept).await.expect("it is still good");
    denied(list(&cluster.grpc, &gone).await, Code::Unauthenticated, "revoked");
    denied(list(&cluster.grpc, &brief).await, Code::Unauthenticated, "expired");
    cluster.stop_server().await;
    for file in fs::read_dir(cluster.home.path("data")).expect("a folder").flatten() {
        let content = fs::read(file.path()).unwrap_or_default();
        for token in [&kept, &gone, &brief, &cluster.api_token] {
            let there = content.windows(token.len()).any(|part| part == token.as_bytes());
            assert!(!there, "a token is in {}", file.path().display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_tokens_are_unambiguous() {
    let cluster = Cluster::start().await;
    let create = async |name: &str, role: Role| {
        let request = v1::CreateApiTokenRequest { name: name.into(), role: role.into(), ttl_ms: 0 };
        cluster.access().create_api_token(request).await
    };
    let first = create("ada", Role::Viewer).await.expect("a token").into_inner().info.expect("its name");
    assert_eq!(create("ada", Role::Admin).await.expect_err("taken").code(), Code::AlreadyExists);
    for name in ["socket", "anonymous", "worker 1", "two\nlines"] {
        assert_eq!(create(name, Role::Viewer).await.expect_err(name).code(), Code::InvalidArgument, "{name}");
    }
    assert_eq!(create("bob", Role::Unspecified).await.expect_err("no role").code(), Code::InvalidArgument);
    cluster.access().revoke_api_token(v1::RevokeApiTokenRequest { id: first.id }).await.expect("revoked");
    create("ada", Role::Viewer).await.expect("the name is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessing_is_slowed_down_and_hinders_nobody_else() {
    let cluster = Cluster::start().await;
    let guesser = Client::of_address(&cluster.grpc, "hodei_guess");
    let guess = async || guesser.jobs().list_jobs(v1::ListJobsRequest::default()).await.expect_err("a guess");
    let mut refused = Vec::new();
    for _ in 0..30 {
        refused.push(guess().await);
    }
    let codes: Vec<Code> = refused.iter().map(Status::code).collect();
    assert!(codes[..10].iter().all(|code| *code == Code::Unauthenticated), "{codes:?}");
    let slowed = refused.iter().find(|status| status.code() == Code::ResourceExhausted).expect("it is slowed down");
    assert!(slowed.message().contains("try again in"), "{slowed:?}");
    assert!(slowed.metadata().get("retry-after").is_some(), "{slowed:?}");
    let holder = Client::of_address(&cluster.grpc, &cluster.api_token);
    holder.jobs().list_jobs(v1::ListJobsRequest::default()).await.expect("a right token from the same address");
    until("it is looked at again", || async { (guess().await.code() == Code::Unauthenticated).then_some(()) }).await;
    // However many they were, they take few lines.
    let lines = until("refusals are in the audit log", || async {
        let lines = cluster.audit("anonymous", "jobs.list").await;
        lines.iter().any(|line| line.outcome.contains("more within a second")).then_some(lines)
    });
    let lines = lines.await;
    assert!(lines.len() < 10 && lines.iter().all(|line| line.peer == "127.0.0.1"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_did_what_is_in_the_audit_log() {
    let mut cluster = Cluster::start().await;
    let made = cluster.hodei(&["token", "create", "api", "--role", "operator", "--name", "ada", "--json"]).await.ok();
    let made = made.json();
    let ada = Client::of_address(&cluster.grpc, made["token"].as_str().expect("a token"));
    let id = ada.queue(shell("sleep 100")).await;
    ada.cancel(&id).await.expect("cancelled");
    ada.cancel(&id).await.expect_err("it has ended");
    ada.queues().pause_queue(v1::PauseQueueRequest { name: "mail".into() }).await.expect("paused");
    let worker = ada.token("", 0).await;
    ada.access().list_audit(v1::ListAuditRequest::default()).await.expect_err("it is for admins");
    cluster.hodei(&["token", "revoke", made["id"].as_str().expect("an id")]).await.ok();
    // What was answered is in the log, whatever happens next; what was refused follows within a second.
    until("the refusal is written", || async { (!cluster.audit("ada", "audit.list").await.is_empty()).then_some(()) })
        .await;
    cluster.crash_server().await;

    let lines = cluster.hodei(&["audit", "--actor", "ada", "--json"]).await.ok().json();
    let lines: Vec<[String; 4]> = lines.as_array().expect("lines").iter().rev().map(told).collect();
    let line = |action: &str, subject: &str, outcome: &str| ["127.0.0.1", action, subject, outcome].map(str::to_owned);
    assert!(lines.contains(&line("jobs.submit", &id, "ok")), "{lines:?}");
    assert!(lines.contains(&line("jobs.cancel", &id, "ok")), "{lines:?}");
    assert!(lines.contains(&line("queues.pause", "mail", "ok")), "{lines:?}");
    assert!(lines.contains(&line("workers.token", &worker.worker_id, "ok")), "{lines:?}");
    assert!(lines.contains(&line("audit.list", "", "refused: needs the role admin")), "{lines:?}");
    let again = lines.iter().filter(|line| line[1] == "jobs.cancel" && line[3].starts_with("refused: "));
    assert_eq!((again.count(), lines.len()), (1, 6), "one line each: {lines:?}");

    let tokens = cluster.hodei(&["audit", "--action", "tokens.revoke", "--json"]).await.ok().json();
    assert!(tokens[0]["subject"].as_str().is_some_and(|subject| subject.contains("ada")), "{tokens}");
    let listed = cluster.hodei(&["token", "list"]).await.ok();
    assert!(listed.text().contains("ada") && !listed.text().contains("hodei_"), "{listed:?}");
    let table = cluster.hodei(&["audit", "--limit", "2"]).await.ok();
    assert_eq!(table.text().lines().count(), 3, "{table:?}");
}

fn told(line: &serde_json::Value) -> [String; 4] {
    ["peer", "action", "subject", "outcome"].map(|field| line[field].as_str().expect("text").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_hands_out_a_token_and_jobs_see_neither_it_nor_the_socket() {
    let cluster = Cluster::up(&[]).await;
    let line = cluster.server.said("for calls over the network while it runs: ").await;
    let token = line.split_once("HODEI_API_TOKEN=").expect("a token").1.to_owned();
    let mut command = cluster.home.command();
    command.env("HODEI_SERVER", &cluster.grpc).env("HODEI_API_TOKEN", &token).args(["run", "--", "env"]);
    let ran = run(command).await.ok();
    assert!(ran.text().contains("HODEI_JOB_ID"), "{ran:?}");
    assert!(!ran.text().contains(&token) && !ran.text().contains("hodei.sock"), "{ran:?}");
    assert!(!ran.text().contains("HODEI_API_TOKEN") && !ran.text().contains("HODEI_SERVER"), "{ran:?}");
    let tokens = cluster.access().list_api_tokens(v1::ListApiTokensRequest {}).await.expect("tokens").into_inner();
    assert!(tokens.tokens.iter().any(|token| token.name == "up" && token.role() == Role::Admin));
}

async fn hodei(home: &Home, server: &str, token: &str, ca: Option<&Path>, args: &[&str]) -> Ran {
    let mut command = home.command();
    command.args(["--server", server]).env("HODEI_API_TOKEN", token).args(args);
    if let Some(ca) = ca {
        command.env("HODEI_CA", ca);
    }
    run(command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_the_server_makes_are_verified() {
    let mut cluster = Cluster::with(&["--tls-self-signed", "--tls-name", "hodei.example"]).await;
    assert!(cluster.grpc.starts_with("https://"), "{}", cluster.grpc);
    let ca = cluster.home.path("data").join("tls").join("ca.pem");
    let token = cluster.api_token.clone();
    let said = cluster.server.said("clients trust it with HODEI_CA=").await;
    assert!(said.starts_with(ca.to_str().expect("UTF-8")) && said.contains("SHA-256"), "{said}");

    hodei(&cluster.home, &cluster.grpc, &token, Some(&ca), &["job", "list"]).await.ok();
    let strange = hodei(&cluster.home, &cluster.grpc, &token, None, &["job", "list"]).await;
    assert!(strange.code == 125 && strange.stderr.contains("--ca"), "{strange:?}");
    let plain = cluster.grpc.replace("https://", "http://");
    let plain = hodei(&cluster.home, &plain, &token, None, &["job", "list"]).await;
    assert!(plain.code == 125 && plain.stderr.contains("https://"), "{plain:?}");
    assert_eq!(plain_probe(&cluster.http).await, "HTTP/1.1 400 Bad Request");
    assert_eq!(tls_probe(&cluster.http, &ca).await, "HTTP/1.1 200 OK");

    // A worker over TLS, and through a restart, after which the certificate is another by the same authority.
    let one_time = cluster.token("", 0).await.token;
    let data = cluster.home.path("far");
    let (data, ca_flag) = (data.to_str().expect("UTF-8"), ca.to_str().expect("UTF-8"));
    let flags = ["worker", "run", "--server", &cluster.grpc, "--ca", ca_flag, "--data", data, "--token", &one_time];
    let _worker = cluster.home.daemon("far", &flags);
    let ran = hodei(&cluster.home, &cluster.grpc, &token, Some(&ca), &["run", "--", "echo", "over TLS"]).await.ok();
    assert_eq!(ran.text(), "over TLS\n");
    cluster.stop_server().await;
    cluster.start_server().await;
    let ran = hodei(&cluster.home, &cluster.grpc, &token, Some(&ca), &["run", "--", "echo", "again"]).await.ok();
    assert_eq!(ran.text(), "again\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_ones_own_are_used() {
    let home = Home::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let cert = home.write("cert.pem", made.cert.pem());
    let key = home.write("key.pem", made.signing_key.serialize_pem());
    let (cert, key) = (cert.to_str().expect("UTF-8"), key.to_str().expect("UTF-8"));
    // Reachable from other machines, which only TLS makes possible.
    let flags = ["server", "--grpc", "0.0.0.0:0", "--http", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key];
    let server = home.daemon("server", &flags);
    let line = server.said("hodei is up: gRPC on ").await;
    let port = line.split_once(", ").and_then(|(at, _)| at.rsplit_once(':')).expect("an address").1;
    let socket = Client::of_socket(&home.path("data").join("hodei.sock"));
    let (token, _) = socket.api_token(Role::Submitter, 0).await;
    let trusted = Some(Path::new(cert));
    hodei(&home, &format!("https://localhost:{port}"), &token, trusted, &["job", "submit", "--", "true"]).await.ok();
    let other = hodei(&home, &format!("https://127.0.0.1:{port}"), &token, trusted, &["job", "list"]).await;
    assert!(other.code == 125 && other.stderr.contains("not good for this address"), "{other:?}");
    assert_eq!(socket.list().await.len(), 1);

    let mut command = home.command();
    command.args(["server", "--data", "other", "--tls-cert", cert, "--tls-key", cert]);
    let refused = run(command).await;
    assert!(refused.code == 125 && refused.stderr.contains("cert.pem"), "{refused:?}");
}

/// An authority of workers.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        Self(rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Files with a certificate and its key, as flags.
    fn certify(&self, home: &Home, name: &str) -> [String; 4] {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("names");
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let write = |end: &str, text: String| home.write(&format!("{name}-{end}.pem"), text).display().to_string();
        ["--tls-cert".into(), write("cert", certificate.pem()), "--tls-key".into(), write("key", key.serialize_pem())]
    }
}

/// A server that takes workers with certificates of this authority.
async fn asking(authority: &Authority) -> Cluster {
    let home = Home::new();
    let file = home.write("workers.pem", authority.0.pem()).display().to_string();
    Cluster::at(home, "server", &["--tls-self-signed", "--tls-client-ca", &file]).await
}

/// The command line of a worker over the network, with these flags, too.
async fn far_worker(cluster: &Cluster, name: &str, flags: &[String]) -> Vec<String> {
    let data = cluster.home.path(name).display().to_string();
    let ca = cluster.authority().display().to_string();
    let token = cluster.token("", 0).await.token;
    let common = ["worker", "run", "--server", &cluster.grpc, "--ca", &ca, "--data", &data, "--token", &token];
    common.into_iter().map(str::to_owned).chain(flags.iter().cloned()).collect()
}

async fn refused(home: &Home, args: &[String], why: &str) {
    let mut command = home.command();
    command.args(args);
    let ran = run(command).await;
    assert!(ran.code == 125 && ran.stderr.contains(why), "'{why}' is not in: {ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_over_the_network_show_a_certificate() {
    const ADVICE: &str = "start the worker with --tls-cert and --tls-key";
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let cluster = asking(&ours).await;
    let home = &cluster.home;

    refused(home, &far_worker(&cluster, "bare", &[]).await, ADVICE).await;
    let strange = far_worker(&cluster, "strange", &theirs.certify(home, "strange")).await;
    refused(home, &strange, "does not take this worker's certificate (UnknownCA)").await;
    let bare = Client::of_tls(&cluster.grpc, &cluster.api_token, &cluster.authority());
    denied(bare.agents().register(v1::RegisterRequest::default()).await, Code::Unauthenticated, ADVICE);
    denied(bare.agents().worker_stream(futures::stream::empty()).await, Code::Unauthenticated, ADVICE);
    denied(
        bare.agents().update_worker_status(v1::UpdateWorkerStatusRequest::default()).await,
        Code::Unauthenticated,
        ADVICE,
    );
    denied(
        bare.agents().unregister_worker(v1::UnregisterWorkerRequest::default()).await,
        Code::Unauthenticated,
        ADVICE,
    );
    denied(bare.jobs().complete_job(v1::CompleteJobRequest::default()).await, Code::Unauthenticated, ADVICE);
    assert!(cluster.workers().await.is_empty(), "{:?}", cluster.workers().await);
    until("the refusal is in the audit log", || async {
        let lines = cluster.audit("anonymous", "workers.register").await;
        lines.iter().any(|line| line.outcome.contains("no certificate")).then_some(())
    })
    .await;

    // People come with their tokens alone, and one with a certificate runs their jobs.
    let good = far_worker(&cluster, "good", &ours.certify(home, "good")).await;
    let mut worker = home.daemon("good", &good.iter().map(String::as_str).collect::<Vec<_>>());
    let ca = cluster.authority();
    let ran = hodei(home, &cluster.grpc, &cluster.api_token, Some(&ca), &["run", "--", "echo", "certified"]).await.ok();
    assert_eq!(ran.text(), "certified\n");
    assert_eq!(cluster.workers().await.len(), 1);

    // Its session is no way around it.
    worker.kill();
    let data = home.path("good").display().to_string();
    let again = ["worker", "run", "--server", &cluster.grpc, "--ca", &ca.display().to_string(), "--data", &data];
    refused(home, &again.map(str::to_owned), ADVICE).await;
    // Nobody asks on the socket.
    cluster.worker("near", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_takes_up_a_renewed_certificate() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let mut cluster = asking(&ours).await;
    let flags = far_worker(&cluster, "far", &ours.certify(&cluster.home, "far")).await;
    let worker = cluster.home.daemon("far", &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let id = until("the worker is there", || async { cluster.workers().await.first().map(|it| it.id.clone()) }).await;
    cluster.connected(&id).await;
    theirs.certify(&cluster.home, "far");
    cluster.crash_server().await;
    until("the worker says what is wrong", || async {
        worker.log().contains("does not take this worker's certificate").then_some(())
    })
    .await;
    ours.certify(&cluster.home, "far");
    cluster.connected(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_of_ones_own_shows_a_certificate() {
    let ours = Authority::new("ours");
    let cluster = asking(&ours).await;
    let [_, cert, _, key] = ours.certify(&cluster.home, "own").map(PathBuf::from);
    let read = |path: &Path| fs::read(path).expect("a file");
    let worker = cluster.sdk_worker("own").await.ca(read(&cluster.authority())).identity(read(&cert), read(&key));
    let worker = Running::start(worker.handle("greet", async |_| Ok(hodei_sdk::json!("hello"))));
    let id = until("the worker is there", || async { cluster.workers().await.first().map(|it| it.id.clone()) }).await;
    cluster.connected(&id).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_workers_that_cannot_be_used_are_named() {
    let home = Home::new();
    let authority = Authority::new("ours");
    let [cert_flag, cert, key_flag, key] = authority.certify(&home, "one");
    let [.., other] = authority.certify(&home, "other");
    let with = |flags: &[&str]| {
        let common = ["worker", "run", "--server", "https://localhost:1", "--token", "x"];
        common.iter().chain(flags).map(|flag| (*flag).to_owned()).collect::<Vec<_>>()
    };
    refused(&home, &with(&[&cert_flag, &cert]), "--tls-key <FILE>").await;
    refused(&home, &with(&[&key_flag, &key]), "--tls-cert <FILE>").await;
    refused(&home, &with(&[&cert_flag, "none.pem", &key_flag, &key]), "cannot read none.pem").await;
    refused(&home, &with(&[&cert_flag, &cert, &key_flag, &cert]), &format!("cannot read {cert}")).await;
    refused(&home, &with(&[&cert_flag, &cert, &key_flag, &other]), &format!("--tls-key {other} cannot be used")).await;
    let mut command = home.command();
    command.args(with(&[])).env("HODEI_TLS_CERT", "none.pem").env("HODEI_TLS_KEY", &key);
    let ran = run(command).await;
    assert!(ran.code == 125 && ran.stderr.contains("cannot read none.pem"), "{ran:?}");

    let server = |flags: &[&str]| {
        let common = ["server", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--tls-client-ca"];
        common.iter().chain(flags).map(|flag| (*flag).to_owned()).collect::<Vec<_>>()
    };
    refused(&home, &server(&[&cert]), "--tls-client-ca (server.tls_client_ca) needs TLS").await;
    refused(&home, &server(&["none.pem", "--tls-self-signed"]), "cannot read none.pem").await;
    refused(&home, &server(&[&key, "--tls-self-signed"]), &format!("{key} has no certificate")).await;
}

async fn plain_probe(http: &str) -> String {
    let address = http.split_once("://").expect("a URL").1;
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    ask(stream, address).await
}

async fn tls_probe(http: &str, ca: &Path) -> String {
    let address = http.split_once("://").expect("a URL").1;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("a certificate")).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let name = "localhost".try_into().expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake");
    ask(stream, address).await
}

/// The first line of the answer to a look at the server's readiness.
async fn ask(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, address: &str) -> String {
    let request = format!("GET /ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer and an orderly end");
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_nowhere_to_be_seen() {
    const VALUE: &str = "the-value-of-a-secret";
    const SIGNING: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let mut cluster = Cluster::up(&[]).await;
    let (token, _) = cluster.client.api_token(Role::Admin, 0).await;
    let client = Client::of_address(&cluster.grpc, &token);
    let spec = |script: &str| v1::JobSpec {
        secrets: [("PASSWORD".to_owned(), VALUE.to_owned())].into(),
        webhook: Some(v1::Webhook { url: "https://hooks.example/x".into(), secret: SIGNING.into() }),
        retry: Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() }),
        ..shell(script)
    };
    let id = client.queue(spec("echo $PASSWORD; echo $PASSWORD >&2; exit 3")).await;
    let mut seen = Vec::new();
    let mut watch =
        client.jobs().watch_job(v1::WatchJobRequest { job_id: id.clone() }).await.expect("a watch").into_inner();
    while let Some(job) = watch.message().await.expect("a change") {
        seen.push(format!("{job:?}"));
    }
    assert!(!seen.is_empty());
    let one_time = client.token("", 0).await.token;
    seen.push(format!("{:?}", client.job(&id).await));
    seen.push(format!("{:?}", client.list().await));
    let log = client.log(&id).await;
    assert_eq!(log.len(), 2, "it did print them");
    seen.extend(log.iter().map(|entry| String::from_utf8_lossy(&entry.text).into_owned()));
    seen.push(format!("{:?}", client.workers().await));
    seen.push(format!("{:?}", client.queues().list_queues(v1::ListQueuesRequest::default()).await));
    seen.push(format!("{:?}", client.dead_letters().list_dead_letters(v1::ListDeadLettersRequest::default()).await));
    let letter = client.dead_letters().get_dead_letter(v1::GetDeadLetterRequest { job_id: id.clone() }).await;
    assert!(letter.is_ok(), "{letter:?}");
    seen.push(format!("{letter:?}"));
    seen.push(format!("{:?}", client.access().list_api_tokens(v1::ListApiTokensRequest {}).await));
    // Errors: a job that is not taken, a token that is nearly right.
    let bad = v1::JobSpec { queue: "no\nqueue".into(), ..spec("true") };
    seen.push(format!(
        "{:?}",
        client.jobs().queue_job(v1::QueueJobRequest { job: Some(bad) }).await.expect_err("refused")
    ));
    let bad = v1::JobSpec { secrets: [("P".to_owned(), format!("{VALUE}\0"))].into(), ..shell("true") };
    seen.push(format!(
        "{:?}",
        client.jobs().queue_job(v1::QueueJobRequest { job: Some(bad) }).await.expect_err("refused")
    ));
    let near = Client::of_address(&cluster.grpc, &format!("{token}0"));
    seen.push(format!("{:?}", near.jobs().list_jobs(v1::ListJobsRequest::default()).await.expect_err("refused")));
    until("the wrong token is in the audit log", || async {
        (!cluster.audit("anonymous", "").await.is_empty()).then_some(())
    })
    .await;
    seen.push(format!("{:?}", cluster.audit("", "").await));
    for args in [&["job", "get", &id][..], &["job", "get", &id, "--json"], &["job", "list", "--json"], &["audit"]] {
        let ran = cluster.hodei(args).await.ok();
        seen.push(format!("{ran:?}"));
    }
    cluster.stop_server().await;
    // The line with which `hodei up` hands out its token is for whoever started it; this token is another.
    seen.push(cluster.server.log());
    for text in &seen {
        for secret in [VALUE, SIGNING, &token, &one_time] {
            assert!(!text.contains(secret), "a secret is in: {text}");
        }
    }
}
