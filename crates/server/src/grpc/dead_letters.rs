//! DeadLetterService: jobs that failed for good.

use super::{invalid, time};
use crate::calls::{Calls, Which, page_size};
use hodei_api::{
    convert,
    v1::{self, dead_letter_service_server::DeadLetterService},
};
use hodei_core::{
    id::{IdMap, JobId},
    job::Job,
    spec::Invalid,
};
use hodei_store::{DeadLetterFilter, DeadLetterPage, ErrorGroup};
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub struct Service {
    pub calls: Calls,
}

#[tonic::async_trait]
impl DeadLetterService for Service {
    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        let v1::ListDeadLettersRequest { filter, page_size: size, page_token } = request.into_inner();
        let filter = filter_from_wire(filter.unwrap_or_default()).map_err(invalid)?;
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let before = convert::letter_place(&page_token).map_err(invalid)?;
        let DeadLetterPage { letters, next } = self.calls.dead_letters(filter, before, limit).await?;
        let jobs = self.calls.jobs(letters.iter().map(|letter| letter.job).collect()).await?;
        let jobs: IdMap<JobId, Job> = jobs.into_iter().map(|job| (job.id, job)).collect();
        let dead_letters =
            letters.iter().map(|letter| convert::dead_letter_to_wire(letter, jobs.get(&letter.job))).collect();
        Ok(Response::new(v1::ListDeadLettersResponse { dead_letters, next_page_token: convert::letter_token(next) }))
    }

    async fn get_dead_letter(
        &self,
        request: Request<v1::GetDeadLetterRequest>,
    ) -> Result<Response<v1::GetDeadLetterResponse>, Status> {
        let id = convert::job_id(&request.into_inner().job_id).map_err(invalid)?;
        let (letter, job) = self.calls.dead_letter(id).await?;
        let mut wire = convert::dead_letter_to_wire(&letter, Some(&job));
        wire.job = Some(self.calls.whole(job).await?);
        Ok(Response::new(v1::GetDeadLetterResponse { dead_letter: Some(wire) }))
    }

    async fn get_dead_letter_stats(
        &self,
        request: Request<v1::GetDeadLetterStatsRequest>,
    ) -> Result<Response<v1::GetDeadLetterStatsResponse>, Status> {
        let limit = page_size(request.into_inner().limit, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let (total, groups) = self.calls.error_groups(limit).await?;
        let groups = groups.into_iter().map(group_to_wire).collect();
        Ok(Response::new(v1::GetDeadLetterStatsResponse { total: signed(total), groups }))
    }

    async fn replay_dead_letters(
        &self,
        request: Request<v1::ReplayDeadLettersRequest>,
    ) -> Result<Response<v1::ReplayDeadLettersResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::ReplayDeadLettersRequest { job_ids, filter, all } = request.into_inner();
        let replayed = calls.replay(which(&job_ids, filter, all).map_err(invalid)?).await?;
        Ok(Response::new(v1::ReplayDeadLettersResponse { replayed: signed(replayed) }))
    }

    async fn discard_dead_letters(
        &self,
        request: Request<v1::DiscardDeadLettersRequest>,
    ) -> Result<Response<v1::DiscardDeadLettersResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::DiscardDeadLettersRequest { job_ids, filter, all } = request.into_inner();
        let discarded = calls.discard(which(&job_ids, filter, all).map_err(invalid)?).await?;
        Ok(Response::new(v1::DiscardDeadLettersResponse { discarded: signed(discarded) }))
    }
}

fn which(job_ids: &[String], filter: Option<v1::DeadLetterFilter>, all: bool) -> Result<Which, Invalid> {
    let ids = job_ids.iter().map(|id| convert::job_id(id)).collect::<Result<_, _>>()?;
    Which::of(ids, filter.map(filter_from_wire).transpose()?.unwrap_or_default(), all)
}

fn filter_from_wire(wire: v1::DeadLetterFilter) -> Result<DeadLetterFilter, Invalid> {
    let text = |text: String| (!text.is_empty()).then_some(text);
    Ok(DeadLetterFilter {
        queue: text(wire.queue),
        task_type: text(wire.task_type),
        kind: text(wire.failure_kind).map(|kind| convert::failure_kind(&kind)).transpose()?,
        fingerprint: text(wire.fingerprint).map(|print| convert::fingerprint_from_wire(&print)).transpose()?,
        from: time("from_ms", wire.from_ms)?,
        to: time("to_ms", wire.to_ms)?,
    })
}

fn group_to_wire(group: ErrorGroup) -> v1::ErrorGroup {
    v1::ErrorGroup {
        fingerprint: convert::fingerprint_to_wire(group.fingerprint),
        failure_kind: group.kind.name().to_owned(),
        example: group.example,
        count: signed(group.count),
        first_ms: group.first.0,
        last_ms: group.last.0,
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
