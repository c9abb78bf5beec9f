//! The dead-letter queue: looking, replaying, discarding.

use super::{Calls, Problem};
use hodei_core::{brain::ManyJobs, dead_letter::DeadLetter, id::JobId, job::Job, spec::Invalid, time::Time};
use hodei_store::{DeadLetterFilter, DeadLetterPage, ErrorGroup};

/// Dead letters that are handled in one step.
const STEP: usize = 1000;
const MAX_IDS: usize = 10_000;

/// Which dead letters something is done to.
#[derive(Clone, Debug)]
pub enum Which {
    These(Vec<JobId>),
    Matching(DeadLetterFilter),
}

impl Which {
    /// Nothing is done to all there are unless that is said.
    pub fn of(ids: Vec<JobId>, filter: DeadLetterFilter, all: bool) -> Result<Self, Invalid> {
        let filter = (filter != DeadLetterFilter::default()).then_some(filter);
        match (ids.is_empty(), filter, all) {
            (true, None, true) => Ok(Which::Matching(DeadLetterFilter::default())),
            (true, Some(filter), false) => Ok(Which::Matching(filter)),
            (false, None, false) => Ok(Which::These(ids)),
            (true, None, false) => {
                Err(Invalid::new("filter", "name jobs, set something in the filter, or ask for all"))
            }
            _ => Err(Invalid::new("filter", "give jobs, a filter or all, not several of them")),
        }
    }
}

impl Calls {
    pub async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        before: Option<(Time, JobId)>,
        limit: usize,
    ) -> Result<DeadLetterPage, Problem> {
        Ok(self.engine.shared().store.dead_letters(filter, before, limit).await?)
    }

    /// With the job itself.
    pub async fn dead_letter(&self, id: JobId) -> Result<(DeadLetter, Job), Problem> {
        let letter = self.engine.shared().store.dead_letter(id).await?;
        let letter = letter.ok_or_else(|| Problem::NotFound(format!("{id} is not in the dead-letter queue")))?;
        Ok((letter, self.find(id).await?))
    }

    /// How many there are, and the largest groups of like errors.
    pub async fn error_groups(&self, limit: usize) -> Result<(u64, Vec<ErrorGroup>), Problem> {
        Ok(self.engine.shared().store.error_groups(limit).await?)
    }

    pub async fn replay(&self, which: Which) -> Result<u64, Problem> {
        self.to_dead_letters(which, ManyJobs::Replay).await
    }

    pub async fn discard(&self, which: Which) -> Result<u64, Problem> {
        self.to_dead_letters(which, ManyJobs::Discard).await
    }

    async fn to_dead_letters(&self, which: Which, what: ManyJobs) -> Result<u64, Problem> {
        let which = match which {
            Which::These(ids) if ids.len() > MAX_IDS => {
                let problem = format!("there are {}; at most {MAX_IDS} are allowed", ids.len());
                return Err(Invalid::new("job_ids", problem).into());
            }
            which => which,
        };
        let mut done = 0;
        let outcome = self.in_steps(which, what, &mut done).await;
        self.audited_many(done, outcome)
    }

    async fn in_steps(&self, which: Which, what: ManyJobs, done: &mut u64) -> Result<(), Problem> {
        let filter = match which {
            Which::These(ids) => {
                *done = self.many(ids, what).await?;
                return Ok(());
            }
            Which::Matching(filter) => filter,
        };
        let mut before = None;
        loop {
            let DeadLetterPage { letters, next } = self.dead_letters(filter.clone(), before, STEP).await?;
            *done += self.many(letters.iter().map(|letter| letter.job).collect(), what.clone()).await?;
            before = next;
            if before.is_none() {
                return Ok(());
            }
        }
    }
}
