//! The scheduler: what it decides, why, and by what settings.

use super::{Calls, Problem};
use hodei_api::{convert, v1};
use hodei_core::{
    brain::{Answer, Input, QueueView, WorkerView},
    id::{JobId, WorkerId},
    placement::{Decision, SchedulerSettings},
    spec::Invalid,
    state::StateKind,
};

impl Calls {
    pub async fn scheduler(&self) -> Result<SchedulerSettings, Problem> {
        Ok(self.engine.ask(|brain| brain.scheduler()).await?)
    }

    pub async fn set_scheduler(&self, settings: SchedulerSettings) -> Result<SchedulerSettings, Problem> {
        match self.act("scheduler", 0, |caller| Input::SetScheduler { caller, settings }).await? {
            Answer::Scheduler(settings) => Ok(settings),
            _ => Err(Problem::Internal("the brain answered something else".into())),
        }
    }

    /// What would become of such a job now; nothing is queued.
    pub async fn decide(&self, spec: v1::JobSpec) -> Result<Decision, Problem> {
        let spec = self.checked(spec)?.spec;
        Ok(self.engine.ask(move |brain| brain.decide(&spec)).await?)
    }

    /// What became of a job, or why it waits, and its state.
    pub async fn decision(&self, id: JobId) -> Result<(Decision, StateKind), Problem> {
        let job = self.find(id).await?;
        let state = job.state.kind();
        let (decision, progress) = self.with_progress(id, move |brain| brain.decision_on(&job)).await?;
        Ok((Decision { reason: decision.reason + &progress, ..decision }, state))
    }

    /// Workers that could take a job now; such a job, if one is given.
    pub async fn available_workers(&self, spec: Option<v1::JobSpec>) -> Result<Vec<WorkerView>, Problem> {
        let spec = spec.map(|spec| self.checked(spec)).transpose()?.map(|job| job.spec);
        Ok(self.engine.ask(move |brain| brain.available(spec.as_ref())).await?)
    }

    pub async fn assign(&self, job: JobId, worker: WorkerId) -> Result<StateKind, Problem> {
        // What is asked for is the job; the worker is part of the question.
        if !self.workers().await?.iter().any(|view| view.record.id == worker) {
            return Err(Invalid::new("worker_id", format!("there is no worker {worker}")).into());
        }
        super::jobs::state(self.act(job, 0, |caller| Input::Assign { caller, job, worker }).await?)
    }

    /// One queue, or all of them.
    pub async fn queue_status(&self, name: String) -> Result<Vec<QueueView>, Problem> {
        if name.is_empty() { self.queues(None, usize::MAX).await } else { Ok(vec![self.queue(name).await?]) }
    }

    /// What is empty or unset stays as it is.
    pub async fn change_scheduler(&self, changes: v1::ConfigureSchedulerRequest) -> Result<SchedulerSettings, Problem> {
        let settings = convert::scheduler_changed(self.scheduler().await?, &changes)?;
        self.set_scheduler(settings).await
    }
}
