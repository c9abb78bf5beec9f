//! Readers that follow the log of a job while faults happen, and begin again when their stream breaks.

use super::{client::Client, judge::Log};
use hodei_api::v1;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::Status;

/// How long a reader may go on once its job has ended and nothing is harmed any more.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Follower {
    pub job: String,
    reader: JoinHandle<Result<Log, String>>,
}

impl Follower {
    pub fn start(client: Client, job: String) -> Self {
        let reader = tokio::spawn(follow(client, job.clone()));
        Self { job, reader }
    }

    /// All that it read, or what was wrong with it.
    pub async fn ended(self) -> Result<Log, String> {
        match tokio::time::timeout(PATIENCE, self.reader).await {
            Ok(read) => read.unwrap_or_else(|error| Err(error.to_string())),
            Err(_) => Err("the stream does not end although the job has".to_owned()),
        }
    }
}

async fn follow(client: Client, job: String) -> Result<Log, String> {
    let mut read: Log = Vec::new();
    loop {
        match follow_once(&client, &job, &mut read).await {
            Ok(Ok(())) => return Ok(read),
            Ok(Err(wrong)) => return Err(wrong),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Reads from the beginning to the end. What was read before must come again unchanged.
async fn follow_once(client: &Client, job: &str, read: &mut Log) -> Result<Result<(), String>, Status> {
    let request = v1::SubscribeLogsRequest { job_id: job.to_owned(), tail: None };
    let mut stream = client.logs().subscribe_logs(request).await?.into_inner();
    let mut at = 0;
    while let Some(message) = stream.message().await? {
        for entry in message.entries {
            match read.get(at) {
                Some(before) if *before != entry => {
                    return Ok(Err(format!(
                        "entry {at} of the stream was {before:?} and is {entry:?} when read again"
                    )));
                }
                Some(_) => {}
                None => read.push(entry),
            }
            at += 1;
        }
    }
    let before = read.len();
    Ok(if at < before { Err(format!("the stream ended at entry {at} and had {before} before")) } else { Ok(()) })
}
