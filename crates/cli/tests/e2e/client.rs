//! What tests ask of a server, over gRPC.

use crate::process::until;
use hodei_api::channel::{self, ApiToken, Authorized, Certificates};
use hodei_api::v1::{
    self, access_service_client::AccessServiceClient as Access,
    dead_letter_service_client::DeadLetterServiceClient as DeadLetters,
    event_service_client::EventServiceClient as Events,
    job_execution_service_client::JobExecutionServiceClient as Jobs,
    log_stream_service_client::LogStreamServiceClient as Logs,
    provider_management_service_client::ProviderManagementServiceClient as Providers,
    queue_service_client::QueueServiceClient as Queues, webhook_service_client::WebhookServiceClient as Webhooks,
    worker_admin_service_client::WorkerAdminServiceClient as Admin,
    worker_agent_service_client::WorkerAgentServiceClient as Agents,
};
use hyper_util::rt::TokioIo;
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tokio::net::UnixStream;
use tonic::{Code, Status, transport::Endpoint};
use tower::service_fn;

const MAX_MESSAGE: usize = 64 << 20;

/// Connects anew by itself when the server was away.
#[derive(Clone)]
pub struct Client {
    pub channel: Authorized,
}

impl Client {
    pub fn of_socket(path: &Path) -> Self {
        let path: PathBuf = path.to_owned();
        let connect = service_fn(move |_| {
            let path = path.clone();
            async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let channel = Endpoint::from_static("http://socket").connect_with_connector_lazy(connect);
        Self { channel: ApiToken::default().on(channel) }
    }

    /// Over TCP, with this API token.
    pub fn of_address(url: &str, token: &str) -> Self {
        let channel = Endpoint::from_shared(url.to_owned()).expect("a URL").connect_lazy();
        Self { channel: ApiToken::new(token).expect("a token").on(channel) }
    }

    /// Over TLS, with this API token, and the authority of the server in a file.
    pub fn of_tls(url: &str, token: &str, ca: &Path) -> Self {
        let certificates = Certificates { ca: Some(fs::read(ca).expect("a file").into()), identity: None };
        let channel = channel::connect_lazy(channel::endpoint(url.to_owned(), &certificates).expect("a URL"));
        Self { channel: ApiToken::new(token).expect("a token").on(channel) }
    }

    /// Over TCP, with nothing to show.
    pub fn anonymous(url: &str) -> Self {
        let channel = Endpoint::from_shared(url.to_owned()).expect("a URL").connect_lazy();
        Self { channel: ApiToken::default().on(channel) }
    }

    pub fn access(&self) -> Access<Authorized> {
        Access::new(self.channel.clone())
    }

    /// The newest lines of the audit log; empty names stand for all.
    pub async fn audit(&self, actor: &str, action: &str) -> Vec<v1::AuditEntry> {
        let (actor, action) = (actor.to_owned(), action.to_owned());
        let request = v1::ListAuditRequest { actor, action, ..Default::default() };
        self.access().list_audit(request).await.expect("the audit log").into_inner().entries
    }

    /// A new API token with a name of its own.
    pub async fn api_token(&self, role: v1::Role, ttl_ms: i64) -> (String, v1::ApiToken) {
        let request = v1::CreateApiTokenRequest { name: String::new(), role: role.into(), ttl_ms };
        let made = self.access().create_api_token(request).await.expect("an API token").into_inner();
        (made.token, made.info.expect("what is kept of it"))
    }

    pub fn jobs(&self) -> Jobs<Authorized> {
        Jobs::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn logs(&self) -> Logs<Authorized> {
        Logs::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn webhooks(&self) -> Webhooks<Authorized> {
        Webhooks::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn providers(&self) -> Providers<Authorized> {
        Providers::new(self.channel.clone())
    }

    pub async fn provider(&self, name: &str) -> v1::Provider {
        let request = v1::GetProviderRequest { name: name.to_owned() };
        self.providers().get_provider(request).await.expect("a provider").into_inner()
    }

    pub fn admin(&self) -> Admin<Authorized> {
        Admin::new(self.channel.clone())
    }

    pub fn queues(&self) -> Queues<Authorized> {
        Queues::new(self.channel.clone())
    }

    pub fn dead_letters(&self) -> DeadLetters<Authorized> {
        DeadLetters::new(self.channel.clone())
    }

    pub fn events(&self) -> Events<Authorized> {
        Events::new(self.channel.clone())
    }

    pub fn agents(&self) -> Agents<Authorized> {
        Agents::new(self.channel.clone())
    }

    pub async fn queue(&self, spec: v1::JobSpec) -> String {
        let request = v1::QueueJobRequest { job: Some(spec) };
        self.jobs().queue_job(request).await.expect("the job is taken").into_inner().job_id
    }

    /// Stores jobs that belong together.
    pub async fn queue_all(&self, jobs: Vec<v1::JobSpec>) -> Result<Vec<String>, Status> {
        Ok(self.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await?.into_inner().job_ids)
    }

    /// Asks until the server answers; None for a job that there is not.
    pub async fn find(&self, id: &str) -> Option<v1::Job> {
        let answer = until("the server answers", || async {
            match self.jobs().get_job(v1::GetJobRequest { job_id: id.to_owned() }).await {
                Ok(answer) => Some(answer.into_inner().job),
                Err(status) if status.code() == Code::NotFound => Some(None),
                Err(status) => {
                    assert!(may_pass(&status), "{status:?}");
                    None
                }
            }
        });
        answer.await
    }

    pub async fn job(&self, id: &str) -> v1::Job {
        self.find(id).await.unwrap_or_else(|| panic!("job {id} is lost"))
    }

    /// Waits until the job is in this state, or has ended in another.
    pub async fn reached(&self, id: &str, state: v1::JobState) -> v1::Job {
        until(&format!("job {id} is {state:?}"), || async {
            let job = self.job(id).await;
            let there = job.state() == state;
            assert!(there || job.finished_at_ms == 0, "{job:?}");
            there.then_some(job)
        })
        .await
    }

    pub async fn ended(&self, id: &str) -> v1::Job {
        let end = || async { Some(self.job(id).await).filter(|job| job.finished_at_ms > 0) };
        until(&format!("job {id} has ended"), end).await
    }

    /// Every job that the server has.
    pub async fn list(&self) -> Vec<v1::Job> {
        let mut jobs = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListJobsRequest { page_size: 1000, page_token, ..Default::default() };
            let page = self.jobs().list_jobs(request).await.expect("a page").into_inner();
            jobs.extend(page.jobs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return jobs;
            }
        }
    }

    /// The whole stored log of a job.
    pub async fn log(&self, id: &str) -> Vec<v1::LogEntry> {
        let mut entries = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::GetLogsRequest { job_id: id.to_owned(), page_token, ..Default::default() };
            let page = self.logs().get_logs(request).await.expect("a page of the log").into_inner();
            entries.extend(page.entries);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return entries;
            }
        }
    }

    pub async fn cancel(&self, id: &str) -> Result<v1::JobState, Status> {
        let request = v1::CancelJobRequest { job_id: id.to_owned(), reason: "a test wants it".into() };
        Ok(self.jobs().cancel_job(request).await?.into_inner().state())
    }

    pub async fn token(&self, worker: &str, ttl_ms: i64) -> v1::CreateWorkerTokenResponse {
        let request = v1::CreateWorkerTokenRequest { worker_id: worker.to_owned(), ttl_ms };
        self.admin().create_worker_token(request).await.expect("a token").into_inner()
    }

    pub async fn workers(&self) -> Vec<v1::Worker> {
        self.admin().list_workers(v1::ListWorkersRequest {}).await.expect("workers").into_inner().workers
    }
}

/// Whether asking again may help: the server is away, or cannot answer now.
pub fn may_pass(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
}

/// A job that a shell runs.
pub fn shell(script: impl Into<String>) -> v1::JobSpec {
    let shell = v1::ShellWork { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) }), ..Default::default() }
}

/// What a job printed on one of its streams, put together again.
pub fn text(entries: &[v1::LogEntry], stderr: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries.iter().filter(|entry| entry.stderr == stderr) {
        bytes.extend_from_slice(&entry.text);
        if !entry.unfinished {
            bytes.push(b'\n');
        }
    }
    bytes
}

pub fn lines(entries: &[v1::LogEntry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.text).into_owned()).collect()
}
