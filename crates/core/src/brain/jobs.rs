//! What users and workers want of jobs.

use super::{schedules::schedule_name, *};
use crate::dead_letter::DeadLetter;
use dependencies::in_order;

impl Brain {
    /// Stores these jobs, all or none. Those with an idempotency key that is taken are not stored a second time.
    pub(super) fn enqueue(&mut self, jobs: Vec<NewJob>, parent: Option<JobId>) -> Result<Answer, Refusal> {
        self.check_new(&jobs)?;
        self.check_room(&jobs)?;
        let alone = if let [job] = &jobs[..] { Some(job.id) } else { None };
        let existed = self.take_in(jobs, parent);
        Ok(match alone.and_then(|id| self.jobs.get(&id)) {
            _ if !existed.is_empty() => Answer::Existed(existed),
            Some(entry) => Answer::New(Arc::clone(&entry.job)),
            None => Answer::Done,
        })
    }

    /// Stores jobs that can be taken, and returns the places of those that were there already.
    fn take_in(&mut self, jobs: Vec<NewJob>, parent: Option<JobId>) -> Vec<(usize, JobId)> {
        let order = in_order(&jobs).unwrap_or_default();
        let mut existed = Vec::new();
        let mut take =
            |place: usize, job: NewJob| match job.spec.idempotency_key.as_deref().and_then(|key| self.keys.get(key)) {
                Some(first) => existed.push((place, *first)),
                None => self.create(job, parent, None),
            };
        if order.is_sorted() {
            order.into_iter().zip(jobs).for_each(|(place, job)| take(place, job));
        } else {
            let mut jobs: Vec<Option<NewJob>> = jobs.into_iter().map(Some).collect();
            order.into_iter().for_each(|place| jobs[place].take().into_iter().for_each(|job| take(place, job)));
        }
        existed.sort_unstable();
        existed
    }

    /// Whether these jobs can be taken.
    pub(super) fn check_new(&self, jobs: &[NewJob]) -> Result<(), Refusal> {
        self.check_classes(jobs)?;
        self.check_queues(jobs.iter().map(|job| &*job.spec.queue))?;
        self.check_dependencies(jobs)?;
        self.check_keys(jobs)
    }

    /// Whether the queues that these jobs are for have room for them. It is asked of callers alone: what schedules and running
    /// jobs make belongs to what was taken before.
    pub(super) fn check_room(&self, jobs: &[NewJob]) -> Result<(), Refusal> {
        let is_new = |job: &&NewJob| job.spec.idempotency_key.as_deref().is_none_or(|key| !self.keys.contains_key(key));
        let mut coming: HashMap<&str, u64> = HashMap::new();
        for group in jobs.chunk_by(|one, other| one.spec.queue == other.spec.queue) {
            let queue = group.first().map_or("", |job| &*job.spec.queue);
            let Some((holds, most)) = self.queues.room(queue) else { continue };
            let coming = coming.entry(queue).or_default();
            *coming += group.iter().filter(is_new).count() as u64;
            if *coming > 0 && holds + *coming > u64::from(most) {
                return Err(Refusal::QueueFull { queue: queue.to_owned(), holds, most });
            }
        }
        Ok(())
    }

    fn check_classes(&self, jobs: &[NewJob]) -> Result<(), Refusal> {
        let limit = self.config.class_limit;
        let mut new: HashSet<ClassId> = HashSet::new();
        let alike = |one: &NewJob, other: &NewJob| one.spec.is_of_class_of(&other.spec);
        for job in jobs.chunk_by(alike).filter_map(|group| group.first()) {
            let spec = &job.spec;
            let class = ClassId::of(&spec.queue, spec.work.task_type(), &spec.requirements, spec.concurrency.as_ref());
            if !self.ready.knows(class) {
                new.insert(class);
            }
        }
        match !new.is_empty() && self.ready.classes() + new.len() > limit {
            true => Err(Refusal::TooManyClasses(limit)),
            false => Ok(()),
        }
    }

    /// A job that is not stored because of its key has no id that another could depend on.
    fn check_keys(&self, jobs: &[NewJob]) -> Result<(), Refusal> {
        let mut keys = HashSet::new();
        let taken = |key: &str| self.keys.contains_key(key);
        let existing = |job: &&NewJob| {
            job.spec.idempotency_key.as_deref().is_some_and(|key| !keys.insert(key.to_owned()) || taken(key))
        };
        let existing: HashSet<JobId> = jobs.iter().filter(existing).map(|job| job.id).collect();
        if existing.is_empty() {
            return Ok(());
        }
        let mut named = jobs.iter().flat_map(|job| &job.spec.depends_on);
        named.find(|id| existing.contains(id)).map_or(Ok(()), |id| Err(Refusal::DependsOnExisting(*id)))
    }

    /// Takes in a new job. `tick` is that of the schedule that makes it.
    pub(super) fn create(&mut self, job: NewJob, parent: Option<JobId>, tick: Option<(ScheduleId, Time)>) {
        let NewJob { id, spec, payload } = job;
        let plain = match spec.run_at {
            Some(until) if until > self.now => State::Delayed { until, reason: DelayReason::Scheduled },
            _ => State::Pending { since: self.now },
        };
        let (state, waiting_on) = self.link(id, &spec, plain);
        let seq = self.next_seq();
        let mut job = Job::with_texts(&mut self.texts, id, &spec, state, seq, self.now);
        if waiting_on > 0 || parent.is_some() || tick.is_some() {
            let extra = job.extra_mut();
            (extra.waiting_on, extra.parent) = (waiting_on, parent);
            (extra.schedule, extra.tick) = tick.unzip();
        }
        if let Some(key) = job.extra.as_ref().and_then(|extra| extra.key.clone()) {
            self.keys.insert(Arc::clone(&key), id);
            self.new_keys.push((key, id));
        }
        self.jobs.insert(id, Entry { payload: Some(payload), ..Entry::stored(job) });
        self.index(id);
        self.mark(id);
        self.moved(id, None);
    }

    pub(super) fn cancel(&mut self, id: JobId, reason: String) -> Result<Answer, Refusal> {
        self.step(id, &Event::Cancel(reason))?;
        if let Some(run) = self.run_of(id) {
            self.stop(run, StopReason::Cancelled);
        }
        self.state_of(id)
    }

    pub(super) fn retry(&mut self, id: JobId) -> Result<Answer, Refusal> {
        let job = &self.entry(id)?.job;
        let (by_hand, waits) = (job.state.kind().is_finished(), job.waits_if_retried());
        let event = if waits { Event::RetryWhenSatisfied } else { Event::Retry };
        job.state.next(&event, self.now)?;
        if waits {
            self.await_again(id)?;
        }
        if by_hand && let Some(entry) = self.jobs.get_mut(&id) {
            let job = entry.job_mut();
            (job.attempt, job.losses) = (0, 0);
        }
        self.step(id, &event)?;
        self.state_of(id)
    }

    pub(super) fn resume(&mut self, id: JobId, payload: Arc<[u8]>) -> Result<Answer, Refusal> {
        self.step(id, &Event::Resume)?;
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.job_mut().extra_mut().has_data = true;
            entry.input = Some(payload);
        }
        self.state_of(id)
    }

    /// Does the same to many jobs, and returns for how many it made sense.
    pub(super) fn many(&mut self, jobs: &[JobId], what: &ManyJobs) -> u64 {
        let done = jobs.iter().filter(|id| match what {
            ManyJobs::Cancel { reason } => self.cancel(**id, reason.clone()).is_ok(),
            ManyJobs::Replay => self.is_dead(**id) && self.retry(**id).is_ok(),
            ManyJobs::Discard => self.discard(**id),
            ManyJobs::Forget => self.forget(**id),
        });
        done.count() as u64
    }

    fn is_dead(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|entry| entry.job.state.kind().is_dead())
    }

    fn discard(&mut self, id: JobId) -> bool {
        let Some(entry) = self.jobs.get_mut(&id) else { return false };
        let Some(letter) = DeadLetter::of(&entry.job) else { return false };
        if std::mem::replace(&mut entry.job_mut().extra_mut().discarded, true) {
            return false;
        }
        self.mark(id);
        self.moves.drop_dead_letter(id, letter.fingerprint);
        true
    }

    fn forget(&mut self, id: JobId) -> bool {
        // A row that tells of its end is written first, and what came with that end beside it.
        let told = |entry: &&Entry| entry.job.state.kind().is_finished() && entry.batch != self.batch;
        let Some(job) = self.jobs.get(&id).filter(told).map(|Entry { job, .. }| job.clone()) else { return false };
        // Its end has not been told to everybody yet, somebody waits for a better one, or somebody will tell it of his.
        if self.dependencies.needs(id) || self.dependencies.wait_for(id) {
            return false;
        }
        self.discard(id);
        self.queues.count(&job.queue, Some(job.state.kind()), None);
        self.forgotten.push(id);
        self.jobs.remove(&id);
        self.reads.note_change(id, self.batch);
        true
    }

    pub(super) fn progress(
        &mut self,
        id: JobId,
        execution: ExecutionId,
        progress: Progress,
        data: Option<Arc<[u8]>>,
    ) -> Result<(), Refusal> {
        self.step(id, &Event::Progress(execution))?;
        if let Some(current) = self.jobs.get_mut(&id).and_then(|entry| entry.job_mut().current_mut()) {
            current.progress = Some(progress);
        }
        self.put_data(id, data);
        Ok(())
    }

    fn put_data(&mut self, id: JobId, data: Option<Arc<[u8]>>) {
        if let (Some(data), Some(entry)) = (data, self.jobs.get_mut(&id)) {
            entry.job_mut().extra_mut().has_data = true;
            entry.data = Some(data);
        }
    }

    pub(super) fn finished(&mut self, id: JobId, finished: Finished, children: Vec<NewJob>) -> Result<(), Refusal> {
        let Finished { execution, outcome, started_at, finished_at, log_entries, result, data, .. } = finished;
        // What came to an end of its own must have started, whether or not its worker says when.
        let ran = matches!(outcome, Outcome::Succeeded | Outcome::Snoozed { .. } | Outcome::Blocked { .. });
        let started_at = started_at.or(ran.then_some(finished_at));
        if let (Some(at), State::Scheduled { .. }) = (started_at, &self.entry(id)?.job.state) {
            self.started(id, execution, at)?;
        }
        // Only what came to an end of its own has children: what is run again from its start would make them again.
        let children = if ran { children } else { Vec::new() };
        let outcome = match (outcome, self.check_new(&children)) {
            (Outcome::Cancelled, _) if self.entry(id)?.job.state.cancel().is_none() => {
                Outcome::Failed(Failure::new(FailureKind::Error, "stopped by its worker although nobody asked for it"))
            }
            (_, Err(refusal)) => {
                let why = format!("the jobs that it wanted enqueued were refused: {refusal}");
                Outcome::Failed(Failure { fatal: true, ..Failure::new(FailureKind::Error, why) })
            }
            (other, Ok(())) => other,
        };
        // What a failed run left would stand for that of a later one, which may leave nothing.
        let result = result.filter(|_| outcome == Outcome::Succeeded);
        let children = if matches!(outcome, Outcome::Failed(_)) { Vec::new() } else { children };
        let event = match &outcome {
            Outcome::Succeeded => Event::Succeed(execution),
            Outcome::Failed(failure) => Event::Fail(execution, self.after(id, execution, failure)),
            Outcome::Cancelled => Event::ConfirmCancel(execution),
            Outcome::Released => Event::Release(execution),
            Outcome::Snoozed { delay } => Event::Snooze(execution, self.now + *delay),
            Outcome::Blocked { .. } if planted(Defect::BlockIgnored) => Event::Release(execution),
            Outcome::Blocked { reason } => Event::Block(execution, reason.clone()),
        };
        self.end(id, &event, outcome, finished_at, log_entries)?;
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.result = result.map(Arc::from);
        }
        self.put_data(id, data.map(Arc::from));
        self.take_in(children, Some(id));
        Ok(())
    }

    /// What the worker of a job must know besides its payload.
    pub(super) fn more_of(&self, job: &Job) -> Option<Box<RunMore>> {
        let extra = job.extra.as_ref()?;
        let tick = extra.tick.map(|tick| (schedule_name(job), tick));
        let more = RunMore { depends: extra.depends, has_data: extra.has_data, tick };
        (more != RunMore::default()).then(|| Box::new(more))
    }
}
