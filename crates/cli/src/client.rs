//! How commands reach a server: the one that is named, or the one of the data folder, which is started when there is none.

use crate::{args::Common, config::Config, folder::Holder};
use anyhow::{Context, Result, anyhow, bail};
use hodei_api::{
    channel::{self, ApiToken, Authorized, Certificates, Identity, tuned},
    gather::Gathering,
    v1::{
        ListWorkersRequest, access_service_client::AccessServiceClient as Access,
        dead_letter_service_client::DeadLetterServiceClient as DeadLetters,
        event_service_client::EventServiceClient as Events,
        job_execution_service_client::JobExecutionServiceClient as Jobs,
        log_stream_service_client::LogStreamServiceClient as Logs,
        provider_management_service_client::ProviderManagementServiceClient as Providers,
        queue_service_client::QueueServiceClient as Queues,
        schedule_service_client::ScheduleServiceClient as Schedules,
        scheduler_service_client::SchedulerServiceClient as Scheduler,
        webhook_service_client::WebhookServiceClient as Webhooks,
        worker_admin_service_client::WorkerAdminServiceClient as Admin,
    },
};
use hodei_server::{listen, tls::Tls};
use hyper_util::rt::TokioIo;
use rustix::process::setsid;
use std::{
    env,
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::UnixStream;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tower::service_fn;

pub const SOCKET: &str = "hodei.sock";
/// What the background server prints.
const SERVER_LOG: &str = "server.log";
/// How long a background server may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(30);
const START_AGAIN: Duration = Duration::from_millis(50);
const MAX_MESSAGE: usize = 64 << 20;

/// Where a server is.
#[derive(Clone, Debug)]
pub enum Target {
    Tcp {
        url: String,
        /// Whom its certificate must be from, in PEM; those that this machine trusts if nobody is named.
        ca: Option<Arc<[u8]>>,
        /// What a worker proves itself with.
        identity: Option<IdentityFiles>,
    },
    Socket(PathBuf),
    /// The server of this data folder, started with this configuration file if need be.
    Folder {
        path: PathBuf,
        config: Option<PathBuf>,
    },
}

/// A certificate and its key in PEM. They are read for every connection, so that renewed ones need no new start.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone)]
pub struct Client {
    target: Target,
    token: ApiToken,
    channel: Authorized,
}

impl Target {
    pub fn of(common: &Common, config: &Config) -> Result<Self> {
        let named = common.server.as_deref().unwrap_or(&config.connect);
        match named {
            "" => Ok(Target::Folder {
                path: config.data_folder(common.data.as_deref())?,
                config: common.config.as_deref().map(std::path::absolute).transpose()?,
            }),
            url => Self::parse(url, common),
        }
    }

    pub fn parse(url: &str, common: &Common) -> Result<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Target::Socket(path.trim_start_matches("//").into()));
        }
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            bail!(
                "'{url}' is not a server's address; write it like http://127.0.0.1:7070, https://hodei.example:7070 or unix:/path/to/socket"
            );
        }
        let ca = common.ca.as_deref().map(read).transpose()?;
        Ok(Target::Tcp { url, ca, identity: None })
    }

    /// The same, with what to prove oneself with; a socket does not ask for it.
    pub fn proving(self, identity: Option<IdentityFiles>) -> Self {
        match self {
            Target::Tcp { url, ca, .. } => Target::Tcp { url, ca, identity },
            other => other,
        }
    }

    pub async fn channel(&self) -> Result<Channel> {
        match self {
            Target::Tcp { url, ca, identity } => {
                let identity = identity.as_ref().map(IdentityFiles::read).transpose()?;
                let with = if identity.is_some() { "--ca, --tls-cert and --tls-key" } else { "--ca" };
                let endpoint = channel::endpoint(url.clone(), &Certificates { ca: ca.clone(), identity });
                let endpoint = endpoint.with_context(|| format!("'{url}' cannot be used with this {with}"))?;
                channel::connect(endpoint).await.map_err(|error| unreachable(url, error))
            }
            Target::Socket(path) => {
                socket(path).await.with_context(|| format!("no server answers at {}", path.display()))
            }
            Target::Folder { path, config } => of_folder(path, config.as_deref()).await,
        }
    }
}

impl IdentityFiles {
    /// Whether they can be used, which is better known before the first connection.
    pub fn check(&self) -> Result<()> {
        let said = || format!("--tls-cert {} and --tls-key {} cannot be used", self.cert.display(), self.key.display());
        Tls::of_files(&self.cert, &self.key).map(drop).with_context(said)
    }

    fn read(&self) -> Result<Identity> {
        Ok(Identity { cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

fn read(path: &Path) -> Result<Arc<[u8]>> {
    Ok(std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?.into())
}

/// Why a server was not reached, and what may help.
fn unreachable(url: &str, error: tonic::transport::Error) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    let said = format!("{error:#}");
    let advice = if said.contains("UnknownIssuer") {
        "its certificate is from nobody that is trusted here; name its authority with --ca or HODEI_CA (the server prints the file)"
    } else if said.contains("certificate") {
        "its certificate is not good for this address; 'hodei server --tls-name' adds names to those that it makes"
    } else if said.contains("InvalidContentType") || said.contains("corrupt message") {
        "it does not speak TLS; write http://"
    } else {
        "start one with 'hodei server' or 'hodei up', or check --server"
    };
    error.context(format!("no server answers at {url}; {advice}"))
}

async fn socket(path: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = path.to_owned();
    let connect = service_fn(move |_| {
        let path = path.clone();
        async move {
            let (short, _folder) = listen::reachable(&path)?;
            io::Result::Ok(TokioIo::new(Gathering::new(UnixStream::connect(short).await?)))
        }
    });
    tuned(Endpoint::from_static("http://socket")).connect_with_connector(connect).await
}

/// Connects to the server of a data folder. Several commands may start one at the same time: one of them gets the
/// folder's lock and all find it through its socket.
async fn of_folder(folder: &Path, config: Option<&Path>) -> Result<Channel> {
    let path = folder.join(SOCKET);
    if let Some(channel) = serving(&path).await {
        return Ok(channel);
    }
    if Holder::of(folder).is_some_and(|holder| holder.elsewhere) {
        bail!(
            "no server runs on {}, and its last one kept the jobs in another database; start it again with 'hodei up --database-url …'",
            folder.display()
        );
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the data folder {}", folder.display()))?;
    let mut server = start_background(folder, config)?;
    let began = Instant::now();
    loop {
        if let Some(channel) = serving(&path).await {
            return Ok(channel);
        }
        match server.try_wait()? {
            Some(status) if !status.success() => {
                bail!("the background server did not start:\n{}", last_lines(&folder.join(SERVER_LOG)));
            }
            // Another has the folder. It answers soon, or it is about to leave and the next one gets the folder.
            Some(_) => {
                tokio::time::sleep(START_AGAIN).await;
                server = start_background(folder, config)?;
            }
            None => {}
        }
        if began.elapsed() > START_PATIENCE {
            bail!("the background server does not answer; see {}", folder.join(SERVER_LOG).display());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A channel to a server that has answered. One that is about to leave may still let itself be connected to; one that
/// has answered stays for a while.
async fn serving(path: &Path) -> Option<Channel> {
    let channel = socket(path).await.ok()?;
    Admin::new(channel.clone()).list_workers(ListWorkersRequest {}).await.ok()?;
    Some(channel)
}

fn start_background(folder: &Path, config: Option<&Path>) -> Result<std::process::Child> {
    let log = File::options().create(true).append(true).open(folder.join(SERVER_LOG));
    let log = log.with_context(|| format!("cannot write to the data folder {}", folder.display()))?;
    let program = env::current_exe().context("cannot find this program's own file")?;
    let mut command = std::process::Command::new(program);
    command.arg("up").arg("--background").arg("--data").arg(folder);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    // Its own session, so that a Ctrl-C meant for this command does not reach it; and none of the folder's choices.
    command.env_remove("HODEI_SERVER").env_remove("HODEI_DATABASE_URL").current_dir("/");
    // Jobs of the same user can look at the environment of its process.
    command.env_remove("HODEI_API_TOKEN").env_remove("HODEI_TOKEN");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log));
    detach(&mut command);
    command.spawn().context("cannot start the background server")
}

#[allow(unsafe_code)]
fn detach(command: &mut std::process::Command) {
    // SAFETY: setsid is one system call and touches no memory, so it is safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            Ok(())
        });
    }
}

fn last_lines(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().map(|line| format!("  {line}\n")).collect()
}

impl Client {
    pub async fn connect(common: &Common, config: &Config) -> Result<Self> {
        let target = Target::of(common, config)?;
        let token = common.api_token.as_deref().map(ApiToken::new).transpose()?.unwrap_or_default();
        Ok(Self { channel: token.on(target.channel().await?), token, target })
    }

    /// Connects anew. A server that a person started is theirs to start again; only one of our own is replaced.
    pub async fn reconnect(&mut self) -> Result<()> {
        let channel = match &self.target {
            Target::Folder { path, .. } if Holder::of(path).is_some_and(|holder| !holder.background) => {
                serving(&path.join(SOCKET)).await.context("the server has not come back yet")?
            }
            target => target.channel().await?,
        };
        self.channel = self.token.on(channel);
        Ok(())
    }

    /// Whether jobs run on this machine, in folders that we see too.
    pub fn is_local(&self) -> bool {
        matches!(self.target, Target::Folder { .. })
    }

    pub fn jobs(&self) -> Jobs<Authorized> {
        Jobs::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn logs(&self) -> Logs<Authorized> {
        Logs::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn queues(&self) -> Queues<Authorized> {
        Queues::new(self.channel.clone())
    }

    pub fn scheduler(&self) -> Scheduler<Authorized> {
        Scheduler::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn schedules(&self) -> Schedules<Authorized> {
        Schedules::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn dead_letters(&self) -> DeadLetters<Authorized> {
        DeadLetters::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn events(&self) -> Events<Authorized> {
        Events::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn access(&self) -> Access<Authorized> {
        Access::new(self.channel.clone())
    }

    pub fn webhooks(&self) -> Webhooks<Authorized> {
        Webhooks::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn providers(&self) -> Providers<Authorized> {
        Providers::new(self.channel.clone())
    }

    pub fn admin(&self) -> Admin<Authorized> {
        Admin::new(self.channel.clone())
    }
}

/// A refusal in words for people.
pub fn explain(status: &Status) -> anyhow::Error {
    match status.code() {
        Code::Unavailable => anyhow!("the server cannot do this now: {}", status.message()),
        Code::InvalidArgument => anyhow!("the server refuses: {}", in_flags(status.message())),
        _ if is_not_http2(status) => {
            anyhow!("the server does not answer as one of Hodei's; if it uses TLS, its address begins with https://")
        }
        _ => match innermost(status) {
            Some(cause) => anyhow!("the connection to the server failed: {cause}"),
            None => anyhow!("{}", status.message()),
        },
    }
}

/// What a connection failed of; a status that a server sent has no cause here.
fn innermost(status: &Status) -> Option<&dyn std::error::Error> {
    std::iter::successors(std::error::Error::source(status), |error| error.source()).last()
}

/// The flags that fields of calls are given by, where they are not called alike.
const FLAGS: [(&str, &str); 18] = [
    ("spec.cron", "--cron"),
    ("spec.every_ms", "--every"),
    ("every_ms", "--every"),
    ("spec.time_zone", "--tz"),
    ("spec.overlap", "--overlap"),
    ("spec.catch_up", "--misfire"),
    ("job.run_at_ms", "--delay"),
    ("job.idempotency_key", "--key"),
    ("job.working_directory", "--workdir"),
    ("job.retry.delay_ms", "--retry-delay"),
    ("job.timeouts.run_ms", "--timeout"),
    ("job.timeouts.queue_ms", "--queue-timeout"),
    ("job.timeouts.kill_grace_ms", "--kill-grace"),
    ("job.timeouts.heartbeat_ms", "--heartbeat-timeout"),
    ("from_ms", "--from"),
    ("ttl_ms", "--ttl"),
    ("settings.rate_period_ms", "--rate"),
    ("settings.ageing_ms", "--ageing"),
];

/// A complaint in the words of the command line.
fn in_flags(message: &str) -> String {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_.-[]".contains(letter);
    let mut told = String::new();
    let mut rest = message;
    while let Some(start) = rest.find(is_name) {
        let end = rest[start..].find(|letter| !is_name(letter)).map_or(rest.len(), |length| start + length);
        let word = &rest[start..end];
        // The job of a schedule is written as any other.
        let field = word.strip_prefix("spec.").filter(|field| field.starts_with("job.")).unwrap_or(word);
        told.push_str(&rest[..start]);
        told.push_str(FLAGS.iter().find(|(known, _)| *known == field).map_or(word, |(_, flag)| flag));
        rest = &rest[end..];
    }
    told + rest
}

/// Whether what answered speaks something else, as a server with TLS does.
fn is_not_http2(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let said = error.to_string();
        if said.contains("FRAME_SIZE_ERROR") || said.contains("invalid size") || said.contains("PROTOCOL_ERROR") {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether a request never left, because there is nobody to connect to.
fn never_sent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
        }
        cause = error.source();
    }
    false
}

/// Whether a call that failed left everything as it was. What became of one whose answer was lost, nobody here can know.
pub fn did_nothing(status: &Status) -> bool {
    let refused = matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented
    );
    refused || is_leaving(status)
}

/// Whether the server took nothing because it is not there, or no longer for this.
pub fn is_leaving(status: &Status) -> bool {
    let leaving = status.message().starts_with("the server is shutting down") || never_sent(status);
    status.code() == Code::Unavailable && leaving
}

/// Whether trying again can help.
pub fn may_pass(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_speak_of_flags() {
        let told = in_flags("spec.cron: must be set, such as '0 3 * * *', or every_ms instead");
        assert_eq!(told, "--cron: must be set, such as '0 3 * * *', or --every instead");
        assert_eq!(in_flags("jobs[0].queue: 'é' is long"), "jobs[0].queue: 'é' is long");
        assert_eq!(in_flags("spec.job.timeouts.run_ms: no"), "--timeout: no");
    }
}
