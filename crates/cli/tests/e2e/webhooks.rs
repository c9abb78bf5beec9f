//! Others are told when jobs end: signed, again and again until they take it, and never where they should not be called.

use crate::{
    client::shell,
    cluster::Cluster,
    postgres::setting,
    process::{run, until},
};
use hodei_api::v1::{self, DeliveryState, JobState};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    process::Command,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tonic::Code;

/// A Python that has the published library of Standard Webhooks.
const PYTHON: &str = "HODEI_TEST_PYTHON";
/// Tests receive on this machine.
pub const LOCAL: &str = "[webhooks]\nallow = ['127.0.0.1']\n";
const OWN_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A message as it was received.
#[derive(Clone, Debug)]
pub struct Message {
    headers: BTreeMap<String, String>,
    text: String,
}

impl Message {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub fn body(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }

    pub fn job(&self) -> String {
        self.body()["data"]["job"].as_str().expect("an id").to_owned()
    }
}

/// What to answer.
#[derive(Clone, Debug)]
enum Reply {
    Status(&'static str),
    /// With this header.
    With(&'static str, String),
    /// Nothing, ever.
    Silence,
}

/// Somebody who is told.
pub struct Receiver {
    port: u16,
    messages: Arc<Mutex<Vec<Message>>>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl Receiver {
    pub async fn start() -> Self {
        Self::on("127.0.0.1").await
    }

    async fn on(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).await.expect("an address");
        let port = listener.local_addr().expect("a port").port();
        let receiver = Self { port, messages: Arc::default(), replies: Arc::default() };
        let (messages, replies) = (Arc::clone(&receiver.messages), Arc::clone(&receiver.replies));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(receive(stream, Arc::clone(&messages), Arc::clone(&replies)));
            }
        });
        receiver
    }

    /// What it answers first; afterwards it takes everything.
    fn answers(self, replies: impl IntoIterator<Item = Reply>) -> Self {
        self.replies.lock().expect("a lock").extend(replies);
        self
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    pub fn messages(&self) -> Vec<Message> {
        self.messages.lock().expect("a lock").clone()
    }

    pub async fn received(&self, count: usize) -> Vec<Message> {
        let enough = || async { Some(self.messages()).filter(|messages| messages.len() >= count) };
        until(&format!("{count} messages were received"), enough).await
    }
}

async fn receive(stream: TcpStream, messages: Arc<Mutex<Vec<Message>>>, replies: Arc<Mutex<VecDeque<Reply>>>) {
    let mut stream = BufReader::new(stream);
    let (mut headers, mut line) = (BTreeMap::new(), String::new());
    while stream.read_line(&mut line).await.is_ok_and(|length| length > 2) {
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        line.clear();
    }
    let Some(length) = headers.get("content-length").and_then(|length| length.parse().ok()) else { return };
    let mut body = vec![0; length];
    if stream.read_exact(&mut body).await.is_err() {
        return;
    }
    let reply = replies.lock().expect("a lock").pop_front().unwrap_or(Reply::Status("204 No Content"));
    messages.lock().expect("a lock").push(Message { headers, text: String::from_utf8(body).expect("UTF-8") });
    let answer = match reply {
        Reply::Status(status) => format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"),
        Reply::With(status, header) => format!("HTTP/1.1 {status}\r\n{header}\r\nContent-Length: 0\r\n\r\n"),
        Reply::Silence => return std::future::pending().await,
    };
    _ = stream.write_all(answer.as_bytes()).await;
}

/// A job with one run whose end is told to `url`.
fn telling(spec: v1::JobSpec, url: &str) -> v1::JobSpec {
    let retry = v1::RetryPolicy { max_attempts: Some(1), ..Default::default() };
    let webhook = v1::Webhook { url: url.to_owned(), secret: String::new() };
    v1::JobSpec { retry: Some(retry), webhook: Some(webhook), ..spec }
}

impl Cluster {
    async fn deliveries(&self, job: &str) -> Vec<v1::Delivery> {
        let request = v1::ListDeliveriesRequest { job_id: job.to_owned(), ..Default::default() };
        self.webhooks().list_deliveries(request).await.expect("deliveries").into_inner().deliveries
    }

    /// The one delivery of a job, once it is in this state.
    async fn delivery(&self, job: &str, state: DeliveryState) -> v1::Delivery {
        until(&format!("the delivery of {job} is {state:?}"), || async {
            self.deliveries(job).await.pop().filter(|delivery| delivery.state() == state)
        })
        .await
    }
}

fn statuses(delivery: &v1::Delivery) -> Vec<i32> {
    delivery.tries.iter().map(|one| one.status).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_end_is_told() {
    let cluster = Cluster::up_with(LOCAL).await;
    let receiver = Receiver::start().await;
    let url = receiver.url();
    let good = v1::JobSpec {
        name: "good".into(),
        tags: vec!["a".into()],
        ..telling(shell("echo '{\"answer\": 42}' > $HODEI_RESULT"), &url)
    };
    let good = cluster.queue(good).await;
    let bad = cluster.queue(telling(shell("exit 3"), &url)).await;
    let timeouts = v1::Timeouts { run_ms: Some(200), ..Default::default() };
    let slow = cluster.queue(v1::JobSpec { timeouts: Some(timeouts), ..telling(shell("sleep 60"), &url) }).await;
    let unwanted = cluster.queue(telling(shell("sleep 60"), &url)).await;
    cluster.cancel(&unwanted).await.expect("cancelled");

    let messages = receiver.received(4).await;
    let told = |job: &str| {
        let mut of_job = messages.iter().filter(|message| message.job() == job);
        let message = of_job.next().unwrap_or_else(|| panic!("nothing of {job} in {messages:?}"));
        assert!(of_job.next().is_none(), "{messages:?}");
        assert_eq!(message.headers["content-type"], "application/json");
        message.body()
    };
    let message = told(&good);
    assert_eq!(message["type"], "job.succeeded");
    assert_eq!(message["timestamp"], message["data"]["finished_at"]);
    let data = &message["data"];
    let expected = json!({ "answer": 42 });
    assert_eq!((&data["state"], &data["name"], &data["result"]), (&json!("succeeded"), &json!("good"), &expected));
    assert_eq!((&data["queue"], &data["attempt"], &data["tags"]), (&json!("default"), &json!(1), &json!(["a"])));
    assert_eq!(data["error"], Value::Null);

    let message = told(&bad);
    assert_eq!(message["type"], "job.failed");
    assert_eq!(message["data"]["error"], json!({ "kind": "exit_code", "message": "exited with code 3" }));
    let message = told(&slow);
    assert_eq!((&message["type"], &message["data"]["error"]["kind"]), (&json!("job.timed_out"), &json!("run_timeout")));
    let message = told(&unwanted);
    assert_eq!(message["type"], "job.cancelled");
    assert_eq!(message["data"]["cancel_reason"], "a test wants it");
    for job in [good, bad, slow, unwanted] {
        assert_eq!(statuses(&cluster.delivery(&job, DeliveryState::Delivered).await), [204]);
    }
}

const VERIFY: &str = "
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
for case in json.load(sys.stdin):
    try:
        Webhook(case['secret']).verify(case['text'], case['headers'])
        print('good')
    except WebhookVerificationError as error:
        print('bad:', error)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures_satisfy_the_library_of_standard_webhooks() {
    let Some(python) = setting(PYTHON) else { return };
    let cluster = Cluster::up_with(LOCAL).await;
    let receiver = Receiver::start().await;
    let url = receiver.url();
    let mut command = cluster.command(&["run", "--webhook", &url, "--webhook-secret", "MY_SECRET", "--", "true"]);
    command.env("MY_SECRET", OWN_SECRET);
    run(command).await.ok();
    let own = receiver.received(1).await.remove(0);
    cluster.hodei(&["run", "--webhook", &url, "--", "true"]).await.ok();
    let servers = receiver.received(2).await.remove(1);

    let mut command = cluster.home.command();
    command.args(["webhook", "secret"]);
    let secret = run(command).await.ok().text().trim().to_owned();
    let case =
        |message: &Message, secret: &str| json!({ "secret": secret, "text": message.text, "headers": message.headers });
    let mut forged = own.clone();
    forged.text = forged.text.replace("succeeded", "cancelled");
    let cases =
        json!([case(&own, OWN_SECRET), case(&servers, &secret), case(&own, &secret), case(&forged, OWN_SECRET)]);
    let file = cluster.home.write("cases.json", cases.to_string());
    let mut command = Command::new(python);
    command.args(["-c", VERIFY]).stdin(std::fs::File::open(file).expect("a file"));
    let verdicts = run(command).await.ok();
    let verdicts: Vec<&str> = verdicts.text().lines().map(|line| line.split(':').next().unwrap_or_default()).collect();
    assert_eq!(verdicts, ["good", "good", "bad", "bad"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_sent_until_it_is_accepted() {
    let config = format!("{LOCAL}retry = ['20ms', '20ms', '20ms', '20ms']\n");
    let cluster = Cluster::up_with(&config).await;
    let elsewhere = Receiver::start().await;
    let sent_on = |status| Reply::With(status, format!("Location: {}", elsewhere.url()));
    let failures = [Reply::Status("500 Oops"), sent_on("302 Found"), Reply::Status("404 Not Found")];
    let receiver = Receiver::start().await.answers(failures.into_iter().chain([sent_on("307 Temporary Redirect")]));
    let job = cluster.queue(telling(shell("true"), &format!("{}?key=hidden", receiver.url()))).await;
    let delivery = cluster.delivery(&job, DeliveryState::Delivered).await;
    assert_eq!(statuses(&delivery), [500, 302, 404, 204]);
    assert_eq!(delivery.url, receiver.url(), "the query is not shown");
    let (messages, last) = (receiver.messages(), elsewhere.messages());
    assert_eq!((messages.len(), last.len()), (4, 1));
    assert!(messages.iter().chain(&last).all(|message| message.id() == delivery.id), "{messages:?}");
    assert_eq!(messages[0].text, last[0].text);

    let listed = cluster.hodei(&["webhook", "list", "--job", &job, "--state", "delivered", "--json"]).await.ok().json();
    assert_eq!(listed[0]["id"], delivery.id);
    assert_eq!(listed[0]["tries"][0]["error"], "the receiver answered 500");
    let pending = cluster.hodei(&["webhook", "list", "--state", "pending", "--json"]).await.ok().json();
    assert_eq!(pending, json!([]));

    // And no longer than planned.
    let receiver = Receiver::start().await.answers(vec![Reply::Status("500 Oops"); 9]);
    let job = cluster.queue(telling(shell("true"), &receiver.url())).await;
    let delivery = cluster.delivery(&job, DeliveryState::Failed).await;
    assert_eq!(statuses(&delivery), [500; 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_gone_is_left_alone_until_somebody_asks() {
    let cluster = Cluster::up_with(LOCAL).await;
    let receiver = Receiver::start().await.answers([Reply::Status("410 Gone")]);
    let job = cluster.queue(telling(shell("true"), &receiver.url())).await;
    let delivery = cluster.delivery(&job, DeliveryState::Failed).await;
    assert_eq!(statuses(&delivery), [410]);
    cluster.hodei(&["webhook", "redeliver", &delivery.id]).await.ok();
    let delivery = cluster.delivery(&job, DeliveryState::Delivered).await;
    assert_eq!(statuses(&delivery), [410, 204]);
    // Also one that was delivered.
    cluster.hodei(&["webhook", "redeliver", &delivery.id]).await.ok();
    let messages = receiver.received(3).await;
    assert!(messages.iter().all(|message| message.id() == delivery.id));
    let unknown = v1::RedeliverRequest { delivery_id: uuid::Uuid::nil().to_string() };
    let refused = cluster.webhooks().redeliver(unknown).await.expect_err("there is none");
    assert_eq!(refused.code(), Code::NotFound);
    let wrong = v1::RedeliverRequest { delivery_id: "x".into() };
    assert_eq!(cluster.webhooks().redeliver(wrong).await.expect_err("no id").code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_on_its_way_can_be_asked_for_again() {
    let cluster = Cluster::up_with(&format!("{LOCAL}timeout = '1s'\nretry = ['1h']\n")).await;
    let receiver = Receiver::start().await.answers([Reply::Silence]);
    let job = cluster.queue(telling(shell("true"), &receiver.url())).await;
    receiver.received(1).await;
    let id = cluster.deliveries(&job).await.remove(0).id;
    cluster.hodei(&["webhook", "redeliver", &id]).await.ok();
    let delivery = cluster.delivery(&job, DeliveryState::Delivered).await;
    assert_eq!(statuses(&delivery), [0, 204]);
    assert_eq!(delivery.tries[0].error, "no answer in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_receiver_says_when_to_come_back() {
    let cluster = Cluster::up_with(&format!("{LOCAL}retry = ['1h', '1h', '1h']\n")).await;
    let later = |status| Reply::With(status, "Retry-After: 1".into());
    let busy = [later("429 Too Many Requests"), later("503 Service Unavailable")];
    let receiver = Receiver::start().await.answers(busy);
    let job = cluster.queue(telling(shell("true"), &receiver.url())).await;
    let delivery = cluster.delivery(&job, DeliveryState::Delivered).await;
    assert_eq!(statuses(&delivery), [429, 503, 204]);
    let at: Vec<i64> = delivery.tries.iter().map(|one| one.at_ms).collect();
    assert!(at[1] - at[0] >= 1000 && at[2] - at[1] >= 1000, "{at:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_webhook_is_lost_when_the_server_is_killed() {
    const JOBS: usize = 60;
    let mut cluster = Cluster::up_with(LOCAL).await;
    // Takes eight and answers none of them: whatever was sent is not known to have arrived.
    let receiver = Receiver::start().await.answers(vec![Reply::Silence; 8]);
    let mut jobs = BTreeSet::new();
    for _ in 0..JOBS {
        jobs.insert(cluster.queue(telling(shell("true"), &receiver.url())).await);
    }
    for job in &jobs {
        cluster.reached(job, JobState::Succeeded).await;
    }
    let sent = receiver.received(8).await;
    cluster.crash_server().await;
    let told = |messages: &[Message]| messages.iter().map(Message::job).collect::<BTreeSet<_>>();
    let all = || async { Some(receiver.messages()).filter(|messages| told(&messages[8..]) == jobs) };
    let messages = until("all are told", all).await;
    let ids: BTreeSet<_> = messages.iter().map(Message::id).collect();
    assert_eq!(ids.len(), JOBS, "a message that is sent again has the id it had");
    assert!(sent.iter().all(|message| ids.contains(message.id())));
    for job in &jobs {
        cluster.delivery(job, DeliveryState::Delivered).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_refused_unless_allowed_also_by_redirect() {
    let cluster = Cluster::up(&[]).await;
    let receiver = Receiver::start().await;
    let job = cluster.queue(telling(shell("true"), &receiver.url())).await;
    let delivery = cluster.delivery(&job, DeliveryState::Failed).await;
    assert!(delivery.tries[0].error.starts_with("127.0.0.1 is not allowed: it is loopback"), "{delivery:?}");
    let named = format!("http://localhost:{}/", receiver.port);
    let job = cluster.queue(telling(shell("true"), &named)).await;
    let refused = || async { cluster.deliveries(&job).await.pop().filter(|delivery| !delivery.tries.is_empty()) };
    let delivery = until("it was tried", refused).await;
    assert!(delivery.tries[0].error.contains("is not allowed"), "{delivery:?}");
    assert!(receiver.messages().is_empty());

    let cluster = Cluster::up_with(&format!("{LOCAL}retry = []\n")).await;
    let hidden = Receiver::on("127.0.0.2").await;
    let redirect = format!("Location: http://127.0.0.2:{}/", hidden.port);
    let receiver = Receiver::start().await.answers([Reply::With("308 Permanent Redirect", redirect)]);
    let job = cluster.queue(telling(shell("true"), &receiver.url())).await;
    let delivery = cluster.delivery(&job, DeliveryState::Failed).await;
    assert!(delivery.tries[0].error.starts_with("127.0.0.2 is not allowed"), "{delivery:?}");
    assert_eq!((receiver.messages().len(), hidden.messages().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_checked_and_never_shown() {
    let cluster = Cluster::start().await;
    let with = |secret: &str| {
        let url = "https://user:password@example.com/hook?key=hidden".to_owned();
        v1::JobSpec { webhook: Some(v1::Webhook { url, secret: secret.into() }), ..shell("true") }
    };
    for wrong in ["secret", "whsec_", "whsec_not base64", "whsec_c2hvcnQ="] {
        let request = v1::QueueJobRequest { job: Some(with(wrong)) };
        let refused = cluster.jobs().queue_job(request).await.expect_err("must be refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("webhook.secret"), "{refused:?}");
    }
    let id = cluster.queue(with(OWN_SECRET)).await;
    let webhook = cluster.job(&id).await.spec.and_then(|spec| spec.webhook).expect("a webhook");
    assert_eq!((webhook.url.as_str(), webhook.secret.as_str()), ("https://example.com/hook", "***"));
    let shown = cluster.hodei(&["job", "get", &id, "--json"]).await.ok();
    let hidden = ["password", "hidden", OWN_SECRET];
    assert!(hidden.iter().all(|word| !shown.text().contains(word)), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_secret_is_made_once_and_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mut cluster = Cluster::start().await;
    let path = cluster.home.path("data").join("webhook.secret");
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = std::fs::read_to_string(&path).expect("a secret");
    cluster.crash_server().await;
    assert_eq!(std::fs::read_to_string(&path).expect("a secret"), first);
    // Another machine's secret is not in our folder.
    let refused = cluster.hodei(&["webhook", "secret"]).await;
    assert_eq!((refused.code, refused.stdout.len()), (125, 0), "{refused:?}");
    let config = cluster.home.write("own.toml", format!("[webhooks]\nsecret = '{OWN_SECRET}'\n"));
    let shown = cluster.hodei(&["webhook", "secret", "--config", config.to_str().expect("UTF-8")]).await.ok();
    assert_eq!(shown.text().trim(), OWN_SECRET);
    let config = cluster.home.write("wrong.toml", "[webhooks]\nallow = ['10.0.0.0/40']\n");
    let mut command = cluster.home.command();
    command.args(["server", "--data", "elsewhere", "--config"]).arg(config);
    let refused = run(command).await;
    assert!(refused.code == 125 && refused.stderr.contains("webhooks.allow"), "{refused:?}");
}
