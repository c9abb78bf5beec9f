//! How far the tables are behind what was answered, for those who want to read, and how much of it is on disk there, for the
//! ledger.

use crate::StoreError;
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

#[derive(Debug, Default)]
pub struct Progress {
    /// Commits that were answered before the tables held them, so far.
    answered: AtomicU64,
    /// So many of them are durable in the tables.
    durable: AtomicU64,
    /// So many should be.
    wanted: AtomicU64,
    /// The tables could not be written when that was last tried.
    failing: AtomicBool,
    tables: Mutex<Tables>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tables {
    /// How many of those they hold.
    written: u64,
    /// How often they could not be written, and why the last time.
    failures: u64,
    why: String,
    ended: bool,
}

/// What a reader waits for.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    answered: u64,
    failures: u64,
}

impl Progress {
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Acquire)
    }

    /// One more is about to be answered.
    pub fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Release);
    }

    /// The tables hold so many of them.
    pub fn catch_up(&self, count: u64) {
        self.failing.store(false, Ordering::Release);
        self.change(|tables| tables.written = count);
    }

    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub fn set_durable(&self, count: u64) {
        self.durable.store(count, Ordering::Release);
    }

    pub fn want_durable(&self, count: u64) {
        self.wanted.store(count, Ordering::Relaxed);
    }

    pub fn wants_durable(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > self.durable()
    }

    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    pub fn fail(&self, error: &StoreError) {
        self.failing.store(true, Ordering::Release);
        self.change(|tables| {
            tables.failures += 1;
            tables.why = error.to_string();
        });
    }

    /// When what is returned goes, so do those who wait.
    pub fn ends_with_this(self: &Arc<Self>) -> impl Drop + use<> {
        struct End(Arc<Progress>);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.change(|tables| tables.ended = true);
            }
        }
        End(Arc::clone(self))
    }

    pub fn behind(&self) -> Option<Behind> {
        let (answered, tables) = (self.answered(), self.lock());
        (tables.written < answered).then_some(Behind { answered, failures: tables.failures })
    }

    pub fn wait(&self, behind: Behind) -> Result<(), StoreError> {
        let waits = |tables: &mut Tables| {
            tables.written < behind.answered && tables.failures == behind.failures && !tables.ended
        };
        let tables = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        match tables.written >= behind.answered {
            true => Ok(()),
            false if tables.ended => Err(StoreError::Broken("the writer thread has ended".into())),
            false => Err(StoreError::Unavailable(format!("its tables are behind: {}", tables.why))),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Tables)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
