//! Jobs: submitting, looking, cancelling, retrying, resuming.

use super::{Calls, Problem, is_json, one_line};
use crate::webhooks::Key;
use hodei_api::{convert, v1};
use hodei_core::{
    brain::{Answer, Brain, Input, ManyJobs, NewJob, WorkerView},
    id::JobId,
    job::Job,
    spec::{Invalid, Work},
    state::StateKind,
};
use hodei_store::{Filter, Page};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use uuid::Uuid;

const MAX_JOBS: usize = 10_000;
/// Of so many jobs that come together, half are checked beside the others.
const MANY_JOBS: usize = 2000;
/// Jobs that are cancelled in one step.
const STEP: usize = 1000;

/// A job that was submitted.
#[derive(Clone, Copy, Debug)]
pub struct Submitted {
    pub id: JobId,
    /// It was there already, by its idempotency key.
    pub existed: bool,
}

impl Calls {
    pub async fn submit_one(&self, spec: v1::JobSpec) -> Result<Submitted, Problem> {
        let job = self.checked(spec).map_err(|bad| bad.within("job"))?;
        let submitted = self.enqueue(vec![job]).await?;
        submitted.into_iter().next().ok_or_else(|| Problem::Internal("nothing was submitted".into()))
    }

    /// The same, with the job as it was stored, or as it is if it was there already.
    pub async fn submit_shown(&self, spec: v1::JobSpec) -> Result<(Submitted, v1::Job), Problem> {
        let job = self.checked(spec)?;
        let (id, payload) = (job.id, Arc::clone(&job.payload));
        let weight = weight_of(&job);
        match self.act(id, weight, |caller| Input::Enqueue { caller, jobs: vec![job] }).await? {
            Answer::New(job) => {
                let stored = convert::Stored { payload: Some(payload.to_vec()), ..convert::Stored::default() };
                Ok((Submitted { id, existed: false }, convert::job_to_wire(&job, stored, String::new())))
            }
            Answer::Existed(places) if !places.is_empty() => {
                let id = places[0].1;
                Ok((Submitted { id, existed: true }, self.whole(self.find(id).await?).await?))
            }
            _ => Err(Problem::Internal("the brain gave another answer than it was asked for".into())),
        }
    }

    /// Stores all or none. They may depend on each other by their local names.
    pub async fn submit(&self, specs: Vec<v1::JobSpec>) -> Result<Vec<Submitted>, Problem> {
        if specs.is_empty() || specs.len() > MAX_JOBS {
            let problem = format!("has {} jobs; it must have between 1 and {MAX_JOBS}", specs.len());
            return Err(Invalid::new("jobs", problem).into());
        }
        let jobs = match specs.len() < MANY_JOBS {
            true => self.checked_all(specs, "jobs")?,
            false => self.checked_in_halves(specs, "jobs").await?,
        };
        self.enqueue(jobs).await
    }

    /// The same as [`Calls::checked_all`], by two processors if there are.
    async fn checked_in_halves(&self, specs: Vec<v1::JobSpec>, field: &'static str) -> Result<Vec<NewJob>, Problem> {
        let (mut specs, mut ids) = with_ids(specs, field)?;
        let middle = specs.len() / 2;
        let (rest, rest_ids, calls) = (specs.split_off(middle), ids.split_off(middle), self.clone());
        let rest = tokio::task::spawn_blocking(move || calls.checked_as_they_are(rest, rest_ids, field, middle));
        let mut jobs = self.checked_as_they_are(specs, ids, field, 0)?;
        let rest = rest.await.map_err(|_| Problem::Unavailable("the server is shutting down; try again".into()))?;
        jobs.append(&mut rest?);
        Ok(jobs)
    }

    /// Stores all or none of what was checked.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Submitted>, Problem> {
        let weight = jobs.iter().map(weight_of).sum();
        let mut submitted: Vec<_> = jobs.iter().map(|job| Submitted { id: job.id, existed: false }).collect();
        let subject = ids_of(&submitted);
        if let Answer::Existed(places) = self.act(subject, weight, |caller| Input::Enqueue { caller, jobs }).await? {
            for (place, id) in places {
                submitted[place] = Submitted { id, existed: true };
            }
        }
        Ok(submitted)
    }

    /// A job by itself: what it depends on is named by ids.
    pub fn checked(&self, spec: v1::JobSpec) -> Result<NewJob, Invalid> {
        self.checked_as(JobId(Uuid::now_v7()), spec)
    }

    fn checked_as(&self, id: JobId, mut spec: v1::JobSpec) -> Result<NewJob, Invalid> {
        let payload = convert::payload_of(&mut spec);
        let spec = convert::spec_from_wire(spec)?;
        if let Work::Task { payload, .. } = &spec.work
            && !is_json(payload)
        {
            return Err(Invalid::new("work.task.payload", "must be JSON"));
        }
        if !spec.data.is_empty() && !is_json(&spec.data) {
            return Err(Invalid::new("data", "must be JSON"));
        }
        spec.validate(&self.engine.shared().options.limits)?;
        if let Some(secret) = spec.webhook.as_ref().and_then(|webhook| webhook.secret.as_ref()) {
            Key::parse(&secret.0).map_err(|problem| Invalid::new("webhook.secret", problem))?;
        }
        Ok(NewJob { id, spec, payload })
    }

    /// Jobs that come together: local names become ids.
    pub fn checked_all(&self, specs: Vec<v1::JobSpec>, field: &str) -> Result<Vec<NewJob>, Invalid> {
        let (specs, ids) = with_ids(specs, field)?;
        self.checked_as_they_are(specs, ids, field, 0)
    }

    /// Jobs that have their ids, the first of them at this place of those that come together.
    fn checked_as_they_are(
        &self,
        specs: Vec<v1::JobSpec>,
        ids: Vec<JobId>,
        field: &str,
        first: usize,
    ) -> Result<Vec<NewJob>, Invalid> {
        let mut jobs = Vec::with_capacity(specs.len());
        for ((spec, id), i) in specs.into_iter().zip(ids).zip(first..) {
            jobs.push(self.checked_as(id, spec).map_err(|bad| at(field, i, bad))?);
        }
        Ok(jobs)
    }

    pub async fn find(&self, id: JobId) -> Result<Job, Problem> {
        let found = self.engine.shared().store.jobs(vec![id]).await?;
        let found = self.up_to_date(found).await?;
        found.into_iter().next().ok_or_else(|| Problem::NotFound(format!("there is no job {id}")))
    }

    /// These jobs as they are, also where their rows are behind.
    async fn up_to_date(&self, rows: Vec<Job>) -> Result<Vec<Job>, Problem> {
        let may_be_behind = |job: &&Job| matches!(job.state.kind(), StateKind::Pending | StateKind::Waiting);
        let ids: Vec<JobId> = rows.iter().filter(may_be_behind).map(|job| job.id).collect();
        if ids.is_empty() {
            return Ok(rows);
        }
        let placed = move |brain: &Brain| -> HashMap<JobId, Job> {
            ids.into_iter().filter_map(|id| Some((id, brain.placed(id)?.clone()))).collect()
        };
        let mut placed = self.engine.ask(placed).await?;
        Ok(rows.into_iter().map(|row| placed.remove(&row.id).unwrap_or(row)).collect())
    }

    /// Those of these jobs that exist, in any order.
    pub async fn jobs(&self, ids: Vec<JobId>) -> Result<Vec<Job>, Problem> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.engine.shared().store.jobs(ids).await?;
        self.up_to_date(found).await
    }

    /// A job with its payload, its result, its data and the reason why it waits.
    pub async fn whole(&self, job: Job) -> Result<v1::Job, Problem> {
        let (store, id) = (&self.engine.shared().store, job.id);
        let payload = store.payloads(vec![id]).await?.into_iter().next().map(|(_, bytes)| bytes);
        let result = store.results(vec![id]).await?.into_iter().next().map(|(_, bytes)| bytes);
        let has_data = job.extra.as_ref().is_some_and(|extra| extra.has_data);
        let data = if has_data { store.data(vec![id]).await? } else { Vec::new() };
        let data = data.into_iter().next().and_then(|found| found.data);
        let reason = match job.state.kind().is_finished() {
            true => String::new(),
            false => self.why_it_waits(&job).await?,
        };
        Ok(convert::job_to_wire(&job, convert::Stored { payload, result, data }, reason))
    }

    async fn why_it_waits(&self, job: &Job) -> Result<String, Problem> {
        let job = job.clone();
        self.with_progress(job.id, move |brain| brain.waiting_reason(&job))
            .await
            .map(|(reason, progress)| reason + &progress)
    }

    /// What the brain says of a job, and what takes long about the worker that is being made for it, in words to be added.
    pub(super) async fn with_progress<T: Send + 'static>(
        &self,
        job: JobId,
        ask: impl FnOnce(&Brain) -> T + Send + 'static,
    ) -> Result<(T, String), Problem> {
        let in_progress = self.engine.shared().fleet.all_progress();
        let said = move |brain: &Brain| {
            let made_for_it =
                |view: &WorkerView| view.record.origin.as_ref().and_then(|origin| origin.job) == Some(job);
            let views = if in_progress.is_empty() { Vec::new() } else { brain.workers() };
            let progress =
                views.iter().filter(|view| made_for_it(view)).find_map(|view| in_progress.get(&view.record.id));
            (ask(brain), progress.map(|words| format!(": {words}")).unwrap_or_default())
        };
        Ok(self.engine.ask(said).await?)
    }

    /// Jobs are found by their rows, and shown as they are.
    pub async fn list(&self, filter: Filter, before: Option<JobId>, limit: usize) -> Result<Page, Problem> {
        let states = filter.states.clone();
        let Page { jobs, next } = self.engine.shared().store.list(filter, before, limit).await?;
        let mut jobs = self.up_to_date(jobs).await?;
        jobs.retain(|job| states.is_empty() || states.contains(&job.state.kind()));
        Ok(Page { jobs, next })
    }

    pub async fn cancel(&self, job: JobId, reason: String) -> Result<StateKind, Problem> {
        one_line("reason", &reason)?;
        state(self.act(job, 0, |caller| Input::Cancel { caller, job, reason }).await?)
    }

    pub async fn retry(&self, job: JobId) -> Result<StateKind, Problem> {
        state(self.act(job, 0, |caller| Input::Retry { caller, job }).await?)
    }

    pub async fn resume(&self, job: JobId, payload: Vec<u8>) -> Result<StateKind, Problem> {
        let payload: Arc<[u8]> = if payload.is_empty() { Arc::from(*b"null") } else { payload.into() };
        if !is_json(&payload) || payload.len() > convert::MAX_RESULT {
            let problem = format!("must be JSON of at most {} bytes", convert::MAX_RESULT);
            return Err(Invalid::new("payload", problem).into());
        }
        state(self.act(job, payload.len(), |caller| Input::Resume { caller, job, payload }).await?)
    }

    /// Cancels every job that matches and is not finished, in steps, and returns how many.
    pub async fn cancel_all(&self, filter: Filter, reason: String) -> Result<u64, Problem> {
        one_line("reason", &reason)?;
        if filter == Filter::default() {
            let problem = "must name something: a state, a queue, a task type, a tag, …";
            return Err(Invalid::new("filter", problem).into());
        }
        let live = StateKind::ALL.into_iter().filter(|kind| !kind.is_finished());
        let wanted = |kind: &StateKind| filter.states.is_empty() || filter.states.contains(kind);
        let states: Vec<StateKind> = live.filter(wanted).collect();
        if states.is_empty() {
            return Ok(0);
        }
        self.engine.call(0, |caller| Input::CatchUp { caller }).await?;
        let (mut cancelled, filter) = (0, Filter { states, ..filter });
        let outcome = self.cancel_in_steps(filter, reason, &mut cancelled).await;
        self.audited_many(cancelled, outcome)
    }

    async fn cancel_in_steps(&self, filter: Filter, reason: String, cancelled: &mut u64) -> Result<(), Problem> {
        let mut before = None;
        loop {
            let Page { jobs, next } = self.list(filter.clone(), before, STEP).await?;
            let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
            *cancelled += self.many(ids, ManyJobs::Cancel { reason: reason.clone() }).await?;
            before = next;
            if before.is_none() {
                return Ok(());
            }
        }
    }

    /// The line about something that was done to many jobs in steps, also when it ended half way.
    pub(super) fn audited_many(&self, jobs: u64, outcome: Result<(), Problem>) -> Result<u64, Problem> {
        match &outcome {
            Ok(()) => self.audited(format_args!("{jobs} jobs"), "ok"),
            Err(problem) => self.audited(format_args!("{jobs} jobs"), format_args!("ended early: {problem}")),
        }
        outcome.map(|()| jobs)
    }

    /// Does the same to many jobs, and returns for how many it made sense.
    pub async fn many(&self, jobs: Vec<JobId>, what: ManyJobs) -> Result<u64, Problem> {
        if jobs.is_empty() {
            return Ok(0);
        }
        match self.engine.call(16 * jobs.len(), |caller| Input::Many { caller, jobs, what }).await? {
            Answer::Count(count) => Ok(count),
            _ => Ok(0),
        }
    }
}

/// Where a page of jobs goes on.
pub fn page_token(token: &str) -> Result<Option<JobId>, Invalid> {
    let bad = || Invalid::new("page_token", "is not a token that this server gave");
    if token.is_empty() { Ok(None) } else { token.parse().map(Some).map_err(|_| bad()) }
}

/// About what it takes while it waits for its turn.
fn weight_of(job: &NewJob) -> usize {
    512 + job.payload.len()
}

/// What the audit log says was submitted: the ids, as far as they fit in a line.
fn ids_of(submitted: &[Submitted]) -> String {
    const NAMED: usize = 10;
    let named: Vec<String> = submitted.iter().take(NAMED).map(|job| job.id.to_string()).collect();
    match submitted.len().saturating_sub(NAMED) {
        0 => named.join(" "),
        more => format!("{} and {more} more", named.join(" ")),
    }
}

pub(super) fn state(answer: Answer) -> Result<StateKind, Problem> {
    match answer {
        Answer::State(kind) => Ok(kind),
        _ => Err(Problem::Internal("the brain answered something else".into())),
    }
}

fn at(field: &str, place: usize, bad: Invalid) -> Invalid {
    bad.within(&format!("{field}[{place}]"))
}

/// Gives jobs that come together their ids, and has them name each other by these.
fn with_ids(mut specs: Vec<v1::JobSpec>, field: &str) -> Result<(Vec<v1::JobSpec>, Vec<JobId>), Invalid> {
    let ids: Vec<JobId> = specs.iter().map(|_| JobId(Uuid::now_v7())).collect();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (i, spec) in specs.iter().enumerate().filter(|(_, spec)| !spec.local_name.is_empty()) {
        if places.insert(spec.local_name.clone(), i).is_some() {
            let problem = format!("'{}' is the name of another job, too", spec.local_name);
            return Err(at(field, i, Invalid::new("local_name", problem)));
        }
    }
    if !places.is_empty() {
        no_cycle(&specs, &places).map_err(|(i, bad)| at(field, i, bad))?;
        for name in specs.iter_mut().flat_map(|spec| &mut spec.depends_on) {
            if let Some(place) = places.get(name) {
                *name = ids[*place].to_string();
            }
        }
    }
    Ok((specs, ids))
}

/// Whether the jobs can be put in an order in which each comes after those it depends on. If not, one that is on a cycle.
fn no_cycle(specs: &[v1::JobSpec], places: &HashMap<String, usize>) -> Result<(), (usize, Invalid)> {
    let place = |name: &String| places.get(name).copied();
    let follows_others =
        |(i, spec): (usize, &v1::JobSpec)| spec.depends_on.iter().filter_map(place).all(|place| place < i);
    // Most graphs are written down in an order in which they can run.
    if specs.iter().enumerate().all(follows_others) {
        return Ok(());
    }
    let local = |spec: &v1::JobSpec| -> HashSet<usize> { spec.depends_on.iter().filter_map(place).collect() };
    let mut open: Vec<usize> = Vec::with_capacity(specs.len());
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); specs.len()];
    let mut free = Vec::new();
    for (i, spec) in specs.iter().enumerate() {
        let before = local(spec);
        before.iter().for_each(|dependency| waiting[*dependency].push(i));
        open.push(before.len());
        if before.is_empty() {
            free.push(i);
        }
    }
    let mut done = 0;
    while let Some(i) = free.pop() {
        done += 1;
        for dependent in std::mem::take(&mut waiting[i]) {
            open[dependent] -= 1;
            if open[dependent] == 0 {
                free.push(dependent);
            }
        }
    }
    if done == specs.len() {
        return Ok(());
    }
    let i = on_a_cycle(specs, places, &open);
    let name = &specs[i].local_name;
    let problem = match specs[i].depends_on.contains(name) {
        true => format!("'{name}' depends on itself"),
        false => format!("'{name}' depends on itself through others; break the cycle"),
    };
    Err((i, Invalid::new("depends_on", problem)))
}

/// Walks back from any job that was never free until it meets one a second time.
fn on_a_cycle(specs: &[v1::JobSpec], places: &HashMap<String, usize>, open: &[usize]) -> usize {
    let mut seen = HashSet::new();
    let mut at = open.iter().position(|open| *open > 0).unwrap_or(0);
    while seen.insert(at) {
        let mut named = specs[at].depends_on.iter().filter_map(|name| places.get(name));
        at = named.find(|place| open[**place] > 0).copied().unwrap_or(at);
    }
    at
}
