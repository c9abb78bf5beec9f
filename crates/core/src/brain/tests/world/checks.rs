//! What must hold, whatever happens.

use super::*;

impl World {
    /// After a turn, whose batch is not durable yet.
    pub(super) fn check_turn(&mut self, batch: &Batch) {
        let mut assigned = Vec::new();
        let placed = batch.placements.iter().map(|placement| self.server.brain.placed(placement.job));
        let placed: Vec<Job> = placed.map(|job| job.expect("it was placed just now").clone()).collect();
        for job in batch.jobs.iter().map(|write| &write.job).chain(&placed) {
            let before = self.truth.insert(job.id, job.clone());
            self.check_job(before.as_ref(), job);
            let run = job.state.run().copied();
            if run.is_some() && run != before.and_then(|before| before.state.run().copied()) {
                assigned.push(job.id);
            }
        }
        self.retried.clear();
        self.check_capacity();
        assigned.iter().for_each(|id| self.check_order(&self.truth[id]));
        self.check_nothing_is_lost();
        self.check_windows();
    }

    fn check_job(&self, before: Option<&Job>, job: &Job) {
        assert!(job.attempt <= job.retry.max_attempts, "more attempts than allowed: {job:?}");
        let poisonous = job.losses >= self.server.config.loss_limit;
        assert!(!poisonous || job.state.kind().is_finished(), "it lost too many workers: {job:?}");
        let open = job.executions.iter().filter(|execution| execution.outcome.is_none()).count();
        assert_eq!(open, usize::from(job.state.run().is_some()), "one open execution while active: {job:?}");
        let succeeded = job.executions.iter().filter(|execution| execution.outcome == Some(Outcome::Succeeded));
        for (n, execution) in succeeded.enumerate() {
            assert_eq!(n, 0, "two results were accepted: {job:?}");
            assert!(self.succeeded.contains(&execution.id), "nobody reported this success: {job:?}");
            assert_eq!(job.state.kind(), StateKind::Succeeded);
        }
        let Some(before) = before else { return };
        if before.state.kind().is_finished() {
            assert!(self.retried.contains(&job.id), "it had ended: {before:?} then {job:?}");
        }
        let settled = before.executions.iter().filter(|execution| execution.outcome.is_some());
        for execution in settled {
            assert!(job.executions.contains(execution), "what ended does not change: {before:?} then {job:?}");
        }
    }

    fn check_capacity(&self) {
        for view in self.server.brain.workers() {
            let whole = view.record.info.capacity;
            let mut used = Capacity::default();
            let on_it = |job: &&Job| job.state.run().is_some_and(|run| run.worker == view.record.id);
            for job in self.truth.values().filter(on_it) {
                used.slots += 1;
                used.cpu_millis += job.requirements.cpu_millis;
                used.memory_bytes += job.requirements.memory_bytes;
            }
            let within = used.slots <= whole.slots
                && used.cpu_millis <= whole.cpu_millis
                && used.memory_bytes <= whole.memory_bytes;
            assert!(within, "{used:?} of {whole:?}");
            assert_eq!(view.free.slots, whole.slots - used.slots);
            assert_eq!(view.free.cpu_millis, whole.cpu_millis - used.cpu_millis);
            assert_eq!(view.free.memory_bytes, whole.memory_bytes - used.memory_bytes);
        }
    }

    /// Nothing that ranks before `job` and fits in the room it was given waits, in memory or in the store.
    fn check_order(&self, job: &Job) {
        let Some(run) = job.state.run() else { return };
        let views = self.server.brain.workers();
        let Some(view) = views.iter().find(|view| view.record.id == run.worker) else { return };
        let (cpu, memory) = (view.free.cpu_millis, view.free.memory_bytes);
        let room = (cpu + job.requirements.cpu_millis, memory + job.requirements.memory_bytes);
        for other in self.truth.values().filter(|other| other.state.kind() == StateKind::Pending) {
            let first = (other.priority, other.seq) < (job.priority, job.seq);
            let fits = other.requirements.cpu_millis <= room.0 && other.requirements.memory_bytes <= room.1;
            assert!(!(first && fits), "{job:?} was placed before {other:?}");
        }
    }

    /// Every job that waits for a place or a time will come up.
    fn check_nothing_is_lost(&self) {
        for job in self.truth.values() {
            if job.state.kind() == StateKind::Pending {
                assert!(self.server.brain.ready.will_reach(job), "its line passes it over: {job:?}");
            }
            if let Some(at) = job.due_at().filter(|_| !job.state.kind().is_active()) {
                assert!(self.server.brain.timers.will_reach(at, job.id), "its timer is passed over: {job:?}");
            }
        }
    }

    fn check_windows(&self) {
        let (window, slots) = (self.server.config.window, 6);
        assert!(self.server.brain.ready.longest_window() <= 2 * window + slots);
        assert!(self.server.brain.timers.window_len() <= 3 * window);
    }

    /// After a commit: what is in memory has a reason to be there, and says what the store says.
    pub(super) fn check_memory(&self) {
        let brain = &self.server.brain;
        for (id, entry) in &brain.jobs {
            if entry.batch > self.server.committed {
                continue;
            }
            assert_eq!(self.server.store.latest(*id).as_ref(), Some(&entry.job), "memory and store disagree");
            let reason = brain.stays(&entry.job) || brain.leaving.contains(id);
            assert!(reason, "nothing holds it in memory: {:?}", entry.job);
        }
        let active = brain.jobs.values().filter(|entry| entry.job.state.kind().is_active());
        assert_eq!(active.count(), brain.executions.len(), "every execution that is known is bound");
    }

    pub(super) fn check_end(&self) {
        for (id, job) in &self.truth {
            assert!(job.state.kind().is_finished(), "it never ended: {job:?}");
            assert_eq!(self.server.store.jobs.get(id), Some(job));
        }
        assert_eq!(self.truth.len(), self.server.store.jobs.len());
        assert!(self.server.brain.jobs.is_empty(), "memory is empty when all is done");
        for agent in &self.agents {
            assert!(agent.processes.is_empty() && agent.spool.is_empty(), "life {} holds something", agent.life);
        }
    }
}
