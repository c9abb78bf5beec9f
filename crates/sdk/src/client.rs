//! Submits jobs, many callers over one connection.
//!
//! A call to the server costs about the same for one job as for many, and so does a sync of its disk. So while requests are
//! on their way, what is submitted gathers, and goes together when one of them is answered. Nobody waits for company: as
//! long as fewer than [`FLIGHTS`] requests are on their way, a submission leaves at once.

use crate::Job;
use futures::stream::{self, StreamExt};
use hodei_api::{
    channel::{self, ApiToken, Authorized, Certificates},
    convert,
    v1::{self, job_execution_service_client::JobExecutionServiceClient as Jobs},
};
use hodei_worker::JobId;
use prost::Message;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use thiserror::Error;
use tokio::sync::oneshot;
use tonic::{Code, Status, transport::Channel};

/// Requests of gathered jobs that are on their way at a time: while the server syncs one, it is already told the next.
const FLIGHTS: usize = 2;
/// The most that a server takes in one request.
const MAX_JOBS: usize = 10_000;
/// Gathered jobs are not made a larger request than this; a job that is larger goes alone.
const GATHERED_BYTES: usize = 4 << 20;
const MAX_MESSAGE: usize = 64 << 20;
/// Jobs of a refused request that are sent again at a time, each by itself.
const APART: usize = 16;

/// Submits jobs to a server. Clones share one connection: give one to each task that submits.
///
/// ```no_run
/// use hodei_sdk::{Client, Job, json};
///
/// # async fn example() -> Result<(), hodei_sdk::ClientError> {
/// let client = Client::connect("http://127.0.0.1:7070")?;
/// let id = client.submit(Job::task("greet", &json!({ "name": "Ada" })).max_attempts(3)).await?;
/// println!("{id} is on the server's disk");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// Why a job was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClientError {
    #[error("'{0}' is not a server's address; write it like http://127.0.0.1:7070")]
    Address(String),
    #[error("a token has only letters, digits and signs")]
    Token,
    /// The server does not take it, and nothing of it is stored.
    #[error("{0}")]
    Refused(String),
    /// The server could not be asked, or did not say what became of it. It may be stored: look before you submit it again,
    /// or let it do no harm twice.
    #[error("{0}")]
    Unavailable(String),
}

struct Shared {
    channel: Channel,
    jobs: Jobs<Authorized>,
    gathered: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    waiting: VecDeque<Waiting>,
    flights: usize,
    /// One of them has just landed, and takes what waits as soon as it has its turn.
    boarding: bool,
}

/// A job that somebody waits for.
struct Waiting {
    job: v1::JobSpec,
    bytes: usize,
    answer: oneshot::Sender<Result<JobId, ClientError>>,
}

impl Client {
    /// A client of the server at this address, such as `http://127.0.0.1:7070`. It connects with its first submission, and
    /// again after the connection broke. Call it where a tokio runtime is.
    pub fn connect(server: impl Into<String>) -> Result<Self, ClientError> {
        Self::to(server.into(), Certificates::default())
    }

    /// The same for a server whose certificate is from this authority, in PEM. Without one, an `https` server is checked
    /// against those that this machine trusts.
    pub fn connect_trusting(server: impl Into<String>, ca: impl AsRef<[u8]>) -> Result<Self, ClientError> {
        Self::to(server.into(), Certificates { ca: Some(ca.as_ref().into()), identity: None })
    }

    fn to(server: String, certificates: Certificates) -> Result<Self, ClientError> {
        let endpoint = channel::endpoint(server.clone(), &certificates).ok();
        let endpoint = endpoint.filter(|endpoint| endpoint.uri().scheme().is_some());
        let channel = channel::connect_lazy(endpoint.ok_or(ClientError::Address(server))?);
        Ok(Self::on(channel, ApiToken::default()))
    }

    fn on(channel: Channel, token: ApiToken) -> Self {
        let jobs = Jobs::new(token.on(channel.clone()));
        let jobs = jobs.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
        Self { shared: Arc::new(Shared { channel, jobs, gathered: Mutex::default() }) }
    }

    /// The API token that the server asks for: `hodei token create api --role submitter` makes one.
    pub fn token(self, token: impl AsRef<str>) -> Result<Self, ClientError> {
        let token = ApiToken::new(token.as_ref()).map_err(|_| ClientError::Token)?;
        Ok(Self::on(self.shared.channel.clone(), token))
    }

    /// Hands in a job. When this returns its id, the job is on the server's disk and cannot be lost any more. A caller who
    /// no longer waits does not take it back.
    pub async fn submit(&self, job: impl Into<Job>) -> Result<JobId, ClientError> {
        let job: v1::JobSpec = job.into().into();
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { bytes: job.encoded_len(), job, answer };
        if self.shared.lock().take(waiting) {
            tokio::spawn(fly(Arc::clone(&self.shared)));
        }
        let lost = || ClientError::Unavailable("the client's runtime ended".into());
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Hands in up to 10,000 jobs in one request: all of them are stored, or none. The ids are in their order.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<Vec<JobId>, ClientError> {
        let jobs = jobs.into_iter().map(Into::into).collect();
        self.shared.queue_jobs(jobs).await.map_err(error)
    }
}

impl Gathered {
    /// Adds a job, and says whether a request may leave for it.
    fn take(&mut self, waiting: Waiting) -> bool {
        self.waiting.push_back(waiting);
        let free = self.flights < FLIGHTS && !self.boarding;
        self.flights += usize::from(free);
        free
    }

    /// What goes next; when nothing waits, the flight is over.
    fn next(&mut self) -> Vec<Waiting> {
        self.boarding = false;
        let mut bytes = 0;
        let fits = |waiting: &&Waiting| {
            bytes += waiting.bytes;
            bytes <= GATHERED_BYTES
        };
        let count = self.waiting.iter().take(MAX_JOBS).take_while(fits).count();
        let next: Vec<Waiting> = self.waiting.drain(..count.max(1).min(self.waiting.len())).collect();
        self.flights -= usize::from(next.is_empty());
        next
    }
}

/// Sends what is waiting until nothing is. A task of its own: a caller who goes away takes no neighbour along.
async fn fly(shared: Arc<Shared>) {
    loop {
        let next = shared.lock().next();
        match next.len() {
            0 => return,
            1 => shared.send_apart(next).await,
            _ => shared.send_together(next).await,
        }
        // Whoever was just answered may have more to say, and it goes together.
        shared.lock().boarding = true;
        tokio::task::yield_now().await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send_together(&self, gathered: Vec<Waiting>) {
        let jobs = gathered.iter().map(|waiting| waiting.job.clone()).collect();
        match self.queue_jobs(jobs).await {
            Ok(ids) => gathered.into_iter().zip(ids).for_each(|(waiting, id)| _ = waiting.answer.send(Ok(id))),
            // It takes all or none, and it may be only one of them that it does not take.
            Err(status) if is_refusal(&status) => self.send_apart(gathered).await,
            Err(status) => {
                let error = error(status);
                gathered.into_iter().for_each(|waiting| _ = waiting.answer.send(Err(error.clone())));
            }
        }
    }

    async fn send_apart(&self, gathered: Vec<Waiting>) {
        let send = |waiting: Waiting| async move {
            let answer = self.queue_job(waiting.job).await.map_err(error);
            _ = waiting.answer.send(answer);
        };
        stream::iter(gathered).for_each_concurrent(APART, send).await;
    }

    async fn queue_job(&self, job: v1::JobSpec) -> Result<JobId, Status> {
        let request = v1::QueueJobRequest { job: Some(job) };
        parse(&self.jobs.clone().queue_job(request).await?.into_inner().job_id)
    }

    async fn queue_jobs(&self, jobs: Vec<v1::JobSpec>) -> Result<Vec<JobId>, Status> {
        let count = jobs.len();
        let request = v1::QueueJobsRequest { jobs };
        let ids = self.jobs.clone().queue_jobs(request).await?.into_inner().job_ids;
        if ids.len() != count {
            return Err(Status::internal(format!("the server gave {} ids for {count} jobs", ids.len())));
        }
        ids.iter().map(|id| parse(id)).collect()
    }
}

fn parse(id: &str) -> Result<JobId, Status> {
    convert::job_id(id).map_err(|error| Status::internal(format!("not an id: {error}")))
}

/// Whether the server looked at the jobs and does not take them. What has a source is the connection's own error, whatever
/// its code.
fn is_refusal(status: &Status) -> bool {
    let said = std::error::Error::source(status).is_none();
    said && matches!(
        status.code(),
        Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::NotFound
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

fn error(status: Status) -> ClientError {
    match is_refusal(&status) {
        true => ClientError::Refused(status.message().to_owned()),
        false => ClientError::Unavailable(status.message().to_owned()),
    }
}
