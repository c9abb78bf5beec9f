//! The checker's way to the server, through a link that is harmed like all others.

use crate::checker::judge::Log;
use anyhow::{Context, Result};
use hodei_api::channel::{ApiToken, Authorized};
use hodei_api::v1::{
    self, JobState, job_execution_service_client::JobExecutionServiceClient as Jobs,
    log_stream_service_client::LogStreamServiceClient as Logs,
    worker_admin_service_client::WorkerAdminServiceClient as Admin,
};
use std::{
    future::Future,
    time::{Duration, Instant},
};
use tonic::{Code, Response, Status, transport::Endpoint};

const MAX_MESSAGE: usize = 64 << 20;
/// An answer that takes longer is not waited for.
const ANSWER: Duration = Duration::from_secs(8);
/// Reads are repeated for so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Client {
    channel: Authorized,
}

impl Client {
    pub fn new(url: &str, token: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(url.to_owned())?
            .connect_timeout(Duration::from_secs(3))
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(4));
        Ok(Self { channel: ApiToken::new(token)?.on(endpoint.connect_lazy()) })
    }

    fn jobs(&self) -> Jobs<Authorized> {
        Jobs::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn logs(&self) -> Logs<Authorized> {
        Logs::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Hands in jobs; an error says nothing about whether they are stored.
    pub async fn queue(&self, mut specs: Vec<v1::JobSpec>) -> Result<Vec<String>, Status> {
        let mut jobs = self.jobs();
        if specs.len() == 1 {
            let request = v1::QueueJobRequest { job: specs.pop() };
            return Ok(vec![answered(jobs.queue_job(request)).await?.job_id]);
        }
        Ok(answered(jobs.queue_jobs(v1::QueueJobsRequest { jobs: specs })).await?.job_ids)
    }

    /// Whether a cancel was taken; false for a job that has ended.
    pub async fn cancel(&self, id: &str) -> Result<bool, Status> {
        let request = v1::CancelJobRequest { job_id: id.to_owned(), reason: "chaos".into() };
        match answered(self.jobs().cancel_job(request)).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::FailedPrecondition => Ok(false),
            Err(status) => Err(status),
        }
    }

    pub async fn job(&self, id: &str) -> Result<Option<v1::Job>> {
        let ask = || async {
            match answered(self.jobs().get_job(v1::GetJobRequest { job_id: id.to_owned() })).await {
                Err(status) if status.code() == Code::NotFound => Ok(None),
                answer => Ok(answer?.job),
            }
        };
        patiently(ask).await
    }

    /// Every job in one of these states; in any, if none is named.
    pub async fn list(&self, states: &[JobState]) -> Result<Vec<v1::Job>> {
        let mut jobs = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListJobsRequest {
                states: states.iter().map(|state| *state as i32).collect(),
                page_size: 1000,
                page_token: page_token.clone(),
                ..Default::default()
            };
            let page = patiently(|| async { answered(self.jobs().list_jobs(request.clone())).await }).await?;
            jobs.extend(page.jobs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(jobs);
            }
        }
    }

    /// The whole stored log of a job.
    pub async fn log(&self, id: &str) -> Result<Log> {
        let mut entries = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::GetLogsRequest { job_id: id.to_owned(), page_token, ..Default::default() };
            let page = patiently(|| async { answered(self.logs().get_logs(request.clone())).await }).await?;
            entries.extend(page.entries);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(entries);
            }
        }
    }

    pub async fn worker_named(&self, name: &str) -> Result<String> {
        let list =
            || async { answered(Admin::new(self.channel.clone()).list_workers(v1::ListWorkersRequest {})).await };
        let workers = patiently(list).await?.workers;
        let named = |worker: &v1::Worker| worker.info.as_ref().is_some_and(|info| info.name == name);
        Ok(workers.into_iter().find(named).map(|worker| worker.id).unwrap_or_default())
    }
}

async fn answered<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    let answer = tokio::time::timeout(ANSWER, call).await;
    Ok(answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))?.into_inner())
}

/// Asks again until there is an answer: nothing is harmed any more when this is used.
async fn patiently<T, F: Future<Output = Result<T, Status>>>(ask: impl Fn() -> F) -> Result<T> {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(status) if began.elapsed() > PATIENCE => return Err(status).context("the server does not answer"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
