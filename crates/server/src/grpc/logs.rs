//! LogStreamService: what jobs printed, from the beginning or the end, and as it comes.

use super::{closed, invalid};
use crate::calls::{Calls, LogPage, LogStart, LogWalk, Problem, log_position, log_token, page_size};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    v1::{self, log_stream_service_server::LogStreamService},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 1000;
const MAX_PAGE: usize = 10_000;
/// Messages that wait for a reader; when they are full, the reader's walk stops until it has caught up.
const AHEAD: usize = 4;

pub struct Service {
    pub calls: Calls,
    pub closing: watch::Receiver<bool>,
}

type Sender = mpsc::Sender<Result<v1::LogEntries, Status>>;

#[tonic::async_trait]
impl LogStreamService for Service {
    type SubscribeLogsStream = BoxStream<'static, Result<v1::LogEntries, Status>>;

    async fn subscribe_logs(
        &self,
        request: Request<v1::SubscribeLogsRequest>,
    ) -> Result<Response<Self::SubscribeLogsStream>, Status> {
        let v1::SubscribeLogsRequest { job_id, tail } = request.into_inner();
        let id = convert::job_id(&job_id).map_err(invalid)?;
        let walk = self.calls.follow_log(id, start(tail)).await?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(run(walk, self.closing.clone(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_logs(&self, request: Request<v1::GetLogsRequest>) -> Result<Response<v1::GetLogsResponse>, Status> {
        let v1::GetLogsRequest { job_id, page_token, page_size: size, tail } = request.into_inner();
        let id = convert::job_id(&job_id).map_err(invalid)?;
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let start = match page_token.as_str() {
            "" => start(tail),
            token => LogStart::At(log_position(token).map_err(invalid)?),
        };
        let LogPage { entries, next } = self.calls.log_page(id, start, limit).await?;
        let next_page_token = next.map(log_token).unwrap_or_default();
        Ok(Response::new(v1::GetLogsResponse { entries, next_page_token }))
    }
}

fn start(tail: Option<u64>) -> LogStart {
    tail.map_or(LogStart::BEGINNING, LogStart::Tail)
}

async fn run(mut walk: LogWalk, mut closing: watch::Receiver<bool>, sender: Sender) {
    loop {
        let next = tokio::select! {
            next = walk.next() => next,
            () = closed(&mut closing) => {
                Err(Problem::Unavailable("the server is shutting down; subscribe again".into()))
            }
            () = sender.closed() => return,
        };
        let message = match next {
            Ok(entries) if entries.is_empty() => return,
            Ok(entries) => Ok(v1::LogEntries { entries }),
            Err(problem) => Err(problem.into()),
        };
        let ends = message.is_err();
        if sender.send(message).await.is_err() || ends {
            return;
        }
    }
}
