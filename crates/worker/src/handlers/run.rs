//! Runs tasks and turns what their handlers do into events.

use super::{Done, Handler, Handlers, Task, TaskResult, task::Why};
use crate::{
    chunks::Sink,
    end::{check_children, fatal},
    executor::{ExecutorEvent, Masks, boottime, wall},
};
use futures::future::FutureExt;
use hodei_api::convert::MAX_RESULT;
use hodei_core::{
    id::{ExecutionId, IdMap},
    protocol::{Assignment, Finished, StopReason},
    spec::Timeouts,
    state::{Failure, FailureKind, Outcome},
    time::Elapsed,
};
use std::{
    any::Any,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    runtime::Handle,
    select,
    sync::{Semaphore, mpsc, watch},
    time::sleep,
};

/// What runs. Each can be told to stop.
type Running = Arc<Mutex<IdMap<ExecutionId, Task>>>;

/// The tasks of one agent.
#[derive(Debug)]
pub(crate) struct Tasks {
    handlers: Handlers,
    runtime: Handle,
    sink: Arc<Sink>,
    running: Running,
    lease: watch::Sender<Elapsed>,
    shutdown: watch::Sender<bool>,
}

impl Tasks {
    pub(crate) fn start(
        handlers: Handlers,
        runtime: Handle,
        events: mpsc::UnboundedSender<ExecutorEvent>,
        budget: Arc<Semaphore>,
    ) -> Self {
        let (running, lease, shutdown) =
            (Running::default(), watch::Sender::new(Elapsed(u64::MAX)), watch::Sender::new(false));
        if !handlers.is_empty() {
            runtime.spawn(keep_lease(lease.subscribe(), Arc::clone(&running)));
        }
        let sink = Arc::new(Sink { events, budget, shutdown: shutdown.subscribe() });
        Self { handlers, runtime, sink, running, lease, shutdown }
    }

    /// The process that does this task, if a command does.
    pub(crate) fn as_process(&self, assignment: &Assignment, task_type: &str) -> Option<Assignment> {
        self.handlers.command(task_type)?.process(assignment)
    }

    pub(crate) fn run(&self, assignment: Assignment, task_type: &str) {
        let execution = assignment.execution;
        let Some((task_type, handler)) = self.handlers.get(task_type) else {
            let problem = format!("this worker has no handler for tasks of type {task_type}");
            self.refuse(execution, FailureKind::NotFound, problem);
            return;
        };
        let masks = match Masks::new(assignment.spec.secrets.values()) {
            Ok(masks) => masks,
            Err(error) => {
                self.refuse(execution, FailureKind::NotStarted, format!("the secrets cannot be masked: {error}"));
                return;
            }
        };
        let task = Task::new(assignment, task_type, masks, Arc::clone(&self.sink));
        lock(&self.running).insert(execution, task.clone());
        let running = Arc::clone(&self.running);
        self.runtime.spawn(async move {
            let finished = execute(&handler, &task).await;
            lock(&running).remove(&execution);
            task.tell(ExecutorEvent::Ended(finished));
        });
    }

    /// No server gives a process to a worker that offers tasks alone.
    pub(crate) fn refuse_process(&self, execution: ExecutionId) {
        self.refuse(execution, FailureKind::NotStarted, "this worker runs tasks alone".to_owned());
    }

    fn refuse(&self, execution: ExecutionId, kind: FailureKind, problem: String) {
        let outcome = Outcome::Failed(Failure::new(kind, problem));
        let finished = Finished::new(execution, outcome, wall());
        self.sink.tell(ExecutorEvent::Ended(finished));
    }

    /// False if it is not one of the tasks that run.
    pub(crate) fn stop(&self, execution: ExecutionId, why: StopReason) -> bool {
        let running = lock(&self.running);
        running.get(&execution).map(|task| task.stop(Why::Asked(why))).is_some()
    }

    pub(crate) fn set_lease(&self, deadline: Elapsed) {
        self.lease.send_replace(deadline);
    }

    pub(crate) fn shut_down(&self) {
        self.shutdown.send_replace(true);
        stop_all(&self.running, Why::Shutdown);
    }
}

fn lock(running: &Running) -> MutexGuard<'_, IdMap<ExecutionId, Task>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stop_all(running: &Running, why: Why) {
    lock(running).values().for_each(|task| task.stop(why));
}

/// Ends what would outlive the lease. Ends itself with the agent.
async fn keep_lease(mut lease: watch::Receiver<Elapsed>, running: Running) {
    loop {
        let left = *lease.borrow_and_update() - boottime();
        select! {
            () = sleep(left.duration()) => {
                stop_all(&running, Why::Lease);
                if lease.changed().await.is_err() {
                    return;
                }
            }
            changed = lease.changed() => if changed.is_err() { return },
        }
    }
}

async fn execute(handler: &Handler, task: &Task) -> Finished {
    let (execution, started_at) = (task.execution_id(), wall());
    task.tell(ExecutorEvent::Started { execution, at: started_at });
    let work = AssertUnwindSafe(async { handler(task.clone()).await }).catch_unwind();
    let (outcome, result) = supervise(work, task).await;
    let (data, mut children) = task.leavings();
    let outcome = checked(outcome, task, &mut children);
    let log_entries = task.close_log().await;
    let started_at = Some(started_at);
    Finished { started_at, log_entries, result, data, children, ..Finished::new(execution, outcome, wall()) }
}

/// Children go with ends that are not failures, and what a failure says is masked as the log is.
fn checked(outcome: Outcome, task: &Task, children: &mut Vec<Vec<u8>>) -> Outcome {
    let text = |text: String| String::from_utf8_lossy(&task.masked(&text)).into_owned();
    match outcome {
        Outcome::Failed(failure) => {
            children.clear();
            let (message, detail) = (text(failure.message), text(failure.detail));
            Outcome::Failed(Failure { message, detail, ..failure })
        }
        Outcome::Cancelled | Outcome::Released => {
            children.clear();
            outcome
        }
        other => match check_children(children) {
            Ok(()) => other,
            Err(problem) => {
                children.clear();
                Outcome::Failed(fatal(problem))
            }
        },
    }
}

type Caught = Result<TaskResult<Done>, Box<dyn Any + Send>>;

/// Lets the handler work until it ends, or until it must.
async fn supervise(work: impl Future<Output = Caught>, task: &Task) -> (Outcome, Option<Vec<u8>>) {
    tokio::pin!(work);
    let timeouts = task.timeouts();
    let late = async {
        match timeouts.run {
            Some(limit) => sleep(limit.duration()).await,
            None => std::future::pending().await,
        }
    };
    let why = select! {
        biased;
        ended = &mut work => return ended_by_itself(ended),
        why = task.stopped() => why,
        () = late => Why::Asked(StopReason::RunTimeout),
        () = task.silent() => Why::Silent,
    };
    task.stop(why);
    let ended = select! {
        biased;
        () = task.stopped_now() => None,
        ended = work => Some(ended),
        () = sleep(timeouts.kill_grace.duration()) => None,
    };
    match (ended, why) {
        // It was done before it heard that it should stop.
        (Some(Ok(Ok(result))), Why::Asked(StopReason::Cancelled)) => ended_well(result),
        (_, why) => (stopped_by(why, &timeouts), None),
    }
}

fn ended_by_itself(ended: Caught) -> (Outcome, Option<Vec<u8>>) {
    match ended {
        Ok(Ok(done)) => ended_well(done),
        Ok(Err(error)) => (error.into_outcome(), None),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            (Outcome::Failed(Failure::new(FailureKind::Error, format!("the handler panicked: {text}"))), None)
        }
    }
}

fn ended_well(done: Done) -> (Outcome, Option<Vec<u8>>) {
    let (outcome, result) = done.into_outcome();
    let bytes = (!result.is_null()).then(|| result.to_string().into_bytes());
    if bytes.as_ref().is_some_and(|bytes| !is_json(bytes)) {
        let problem = "the handler's result is nested too deeply";
        return (Outcome::Failed(Failure::new(FailureKind::Error, problem)), None);
    }
    if bytes.as_ref().is_some_and(|bytes| bytes.len() > MAX_RESULT) {
        let problem = format!("the handler's result is larger than {MAX_RESULT} bytes");
        return (Outcome::Failed(Failure::new(FailureKind::Error, problem)), None);
    }
    (outcome, bytes)
}

/// As the server understands it, which does not follow every nesting.
pub(super) fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

fn stopped_by(why: Why, timeouts: &Timeouts) -> Outcome {
    match why {
        Why::Lease => Outcome::Failed(Failure::new(FailureKind::WorkerLost, "stopped: the lease ran out")),
        Why::Shutdown => Outcome::Released,
        Why::Asked(StopReason::RunTimeout) => {
            let limit = timeouts.run.unwrap_or_default().duration();
            Outcome::Failed(Failure::new(FailureKind::RunTimeout, format!("ran longer than {limit:?}")))
        }
        Why::Silent => {
            let limit = timeouts.heartbeat.unwrap_or_default().duration();
            Outcome::Failed(Failure::new(
                FailureKind::HeartbeatTimeout,
                format!("gave no sign of itself for {limit:?}"),
            ))
        }
        Why::Asked(_) => Outcome::Cancelled,
    }
}
