//! The executor and its guardian with real processes.

use hodei_api::logs::Chunk;
use hodei_core::{
    id::{ExecutionId, JobId, WorkerId},
    job::Progress,
    protocol::{Assignment, Context, Finished, StopReason},
    requirements::Requirements,
    spec::{JobSpec, Secret, Work},
    state::{Failure, FailureKind, Outcome},
    time::{Millis, Time},
};
use hodei_worker::{
    executor::{Executor, ExecutorConfig, ExecutorEvent, boottime},
    guardian::{GuardianCommand, Limit, Mechanism},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal},
};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

const MECHANISMS: [Option<Mechanism>; 3] = [None, Some(Mechanism::CgroupV2), Some(Mechanism::None)];
const LONG: Duration = Duration::from_secs(20);

macro_rules! tests {
    ($($name:ident,)+) => {
        const TESTS: &[(&str, fn())] = &[$((stringify!($name), || block_on($name()))),+];
    };
}

tests! {
    ends_are_told_apart,
    what_cannot_start_says_why,
    out_of_memory_is_told_apart,
    limits_on_processors_and_processes_are_in_force,
    a_stubborn_tree_is_gone_after_a_cancel,
    a_polite_job_is_asked_first_and_a_stale_one_is_not,
    what_a_job_leaves_running_is_killed,
    a_fork_bomb_ends,
    a_job_that_runs_too_long_is_stopped,
    nothing_outlives_the_lease,
    jobs_of_a_dead_agent_are_ended,
    jobs_of_a_frozen_agent_are_ended,
    a_lost_guardian_is_replaced,
    the_guardian_shrugs_off_polite_signals,
    much_output_arrives_whole_and_in_order_through_a_small_budget,
    a_job_that_waits_for_budget_can_be_stopped_and_loses_nothing,
    odd_output_is_kept,
    lines_are_seen_as_they_come,
    secrets_are_masked,
    progress_and_result_come_through,
    the_environment_is_clean,
    stdin_and_scripts,
    jobs_of_one_slot_do_not_see_each_others_files,
    what_a_job_leaves_is_seen_after_many_that_left_nothing,
    a_shutdown_leaves_nothing,
}

/// Tests that run at a time. They wait more than they work.
const AT_A_TIME: usize = 6;

/// This program is the guardian and the agent of its own tests, too. A guardian must run on the first thread of its
/// process, where the usual harness runs no test.
fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("guardian") => return ExitCode::from(u8::from(hodei_worker::guardian::main().is_err())),
        Some("agent") => block_on(agent_to_be_killed()),
        _ => {}
    }
    let names: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |test: &&(&str, fn())| names.is_empty() || names.iter().any(|name| test.0.contains(name.as_str()));
    let tests = Mutex::new(TESTS.iter().filter(wanted));
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((name, test)) = { tests.lock().expect("not poisoned").next() } {
                    let passed =
                        std::thread::Builder::new().name((*name).to_owned()).spawn(test).expect("a thread").join();
                    println!("test {name} ... {}", if passed.is_ok() { "ok" } else { "FAILED" });
                    failed.fetch_add(usize::from(passed.is_err()), Ordering::SeqCst);
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("test result: {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

/// An agent that can be killed or frozen from outside.
async fn agent_to_be_killed() {
    let mut rig = Rig::start(None).await;
    if let Ok(lease) = std::env::var("TEST_LEASE_MS") {
        rig.executor.set_lease(boottime() + Millis(lease.parse().expect("a number")));
    }
    rig.run(shell("echo $$ $PPID; exec sleep 1000"));
    let line = rig.first_line().await;
    println!("job {line}");
    std::future::pending().await
}

struct Rig {
    executor: Executor,
    events: mpsc::UnboundedReceiver<ExecutorEvent>,
    budget: Arc<Semaphore>,
    scratch: tempfile::TempDir,
    seen: HashMap<ExecutionId, Seen>,
}

/// All that was told of one execution.
#[derive(Default)]
struct Seen {
    started: bool,
    entries: u64,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    unfinished: bool,
    progress: Vec<Progress>,
    finished: Option<Finished>,
}

impl Seen {
    fn outcome(&self) -> &Outcome {
        &self.finished.as_ref().expect("it has ended").outcome
    }

    fn failure(&self) -> &Failure {
        match self.outcome() {
            Outcome::Failed(failure) => failure,
            other => panic!("it did not fail: {other:?}; {}", self.text()),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned() + &String::from_utf8_lossy(&self.stderr)
    }
}

impl Rig {
    async fn start(mechanism: Option<Mechanism>) -> Self {
        Self::with(mechanism, 8 << 20, 4096).await
    }

    async fn with(mechanism: Option<Mechanism>, budget: usize, pids_limit: u32) -> Self {
        let scratch = tempfile::tempdir().expect("a folder");
        let budget = Arc::new(Semaphore::new(budget));
        let guardian = GuardianCommand {
            program: std::env::current_exe().expect("this program"),
            args: vec!["guardian".into()],
            mechanism,
        };
        let config = ExecutorConfig {
            worker: WorkerId(Uuid::new_v4()),
            slots: 4,
            scratch: scratch.path().join("worker"),
            pids_limit,
            log_budget: budget.clone(),
            pass_environment: false,
            guardian,
        };
        let (sender, events) = mpsc::unbounded_channel();
        let executor = Executor::start(config, sender).await.expect("an executor");
        if let Some(mechanism) = mechanism {
            assert_eq!(executor.isolation().mechanism, mechanism);
        }
        Self { executor, events, budget, scratch, seen: HashMap::new() }
    }

    fn run(&mut self, spec: JobSpec) -> ExecutionId {
        self.run_in(spec, Context::default())
    }

    fn run_in(&mut self, spec: JobSpec, context: Context) -> ExecutionId {
        let execution = ExecutionId(Uuid::new_v4());
        self.seen.insert(execution, Seen::default());
        let (job, spec) = (JobId(Uuid::new_v4()), Arc::new(spec));
        self.executor.run(Assignment { job, execution, attempt: 3, spec, context });
        execution
    }

    /// Runs a job to its end.
    async fn end_of(&mut self, spec: JobSpec) -> Seen {
        let execution = self.run(spec);
        self.end(execution).await
    }

    async fn end(&mut self, execution: ExecutionId) -> Seen {
        while self.seen[&execution].finished.is_none() {
            self.next().await;
        }
        let seen = self.seen.remove(&execution).expect("it ran");
        assert_eq!(seen.entries, seen.finished.as_ref().map_or(0, |finished| finished.log_entries));
        seen
    }

    /// Takes in one event and gives the budget of its data back.
    async fn next(&mut self) -> ExecutionId {
        let event = tokio::time::timeout(LONG, self.events.recv()).await.expect("an event in time").expect("open");
        let execution = match &event {
            ExecutorEvent::Started { execution, .. } | ExecutorEvent::Progress { execution, .. } => *execution,
            ExecutorEvent::Logs(chunk) => chunk.execution,
            ExecutorEvent::Ended(finished) => finished.execution,
            other => panic!("there are no handlers: {other:?}"),
        };
        let seen = self.seen.get_mut(&execution).expect("it was started here");
        assert!(seen.finished.is_none(), "nothing follows the end");
        match event {
            ExecutorEvent::Started { .. } => seen.started = true,
            ExecutorEvent::Progress { progress, .. } => seen.progress.push(progress),
            ExecutorEvent::Ended(finished) => seen.finished = Some(finished),
            ExecutorEvent::Handler { .. } | ExecutorEvent::Supervision(_) => {}
            ExecutorEvent::Logs(chunk) => {
                assert_eq!(chunk.first, seen.entries);
                seen.entries = chunk.end();
                for entry in Chunk::decode(&chunk.data, chunk.count).expect("a good chunk").entries() {
                    let stream = if entry.stderr { &mut seen.stderr } else { &mut seen.stdout };
                    stream.extend_from_slice(entry.text);
                    seen.unfinished = entry.unfinished;
                    if !entry.unfinished {
                        stream.push(b'\n');
                    }
                }
                self.budget.add_permits(chunk.data.len());
            }
        }
        execution
    }

    /// The first line that the one running job prints.
    async fn first_line(&mut self) -> String {
        self.first_line_of(None).await
    }

    async fn first_line_of(&mut self, execution: Option<ExecutionId>) -> String {
        loop {
            let came = self.next().await;
            if execution.is_none_or(|execution| execution == came)
                && let Some((line, _)) = self.seen[&came].text().split_once('\n')
            {
                return line.to_owned();
            }
        }
    }

    fn has(&self, limit: Limit) -> bool {
        let has = self.executor.isolation().limits.contains(&limit);
        assert!(has || std::env::var_os("CI").is_none(), "limits must be tested: {}", self.executor.isolation());
        has
    }
}

fn shell(script: &str) -> JobSpec {
    JobSpec::new("test", Work::Shell { program: "sh".into(), args: vec!["-c".into(), script.into()] })
}

fn program(program: &str, args: &[&str]) -> JobSpec {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    JobSpec::new("test", Work::Shell { program: program.into(), args })
}

fn with_grace(spec: JobSpec, grace: u64) -> JobSpec {
    let timeouts = hodei_core::spec::Timeouts { kill_grace: Millis(grace), ..spec.timeouts };
    JobSpec { timeouts, ..spec }
}

fn pids(line: &str) -> Vec<Pid> {
    let pid = |pid: &str| pid.parse().ok().and_then(Pid::from_raw);
    line.split_whitespace().map(|word| pid(word).unwrap_or_else(|| panic!("no process: {line}"))).collect()
}

/// Whether a process runs; one that is dead and not reaped does not.
fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

fn await_end(pid: Pid) {
    if let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [PollFd::new(&handle, PollFlags::IN)];
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ended = loop {
            match rustix::event::poll(&mut fds, Some(&patience)) {
                Err(rustix::io::Errno::INTR) => {}
                ended => break ended,
            }
        };
        assert_eq!(ended, Ok(1), "{pid:?} still runs");
    }
}

async fn ends_are_told_apart() {
    for mechanism in MECHANISMS {
        let mut rig = Rig::start(mechanism).await;
        let seen = rig.end_of(program("true", &[])).await;
        assert_eq!(seen.outcome(), &Outcome::Succeeded);
        assert!(seen.started && seen.finished.as_ref().is_some_and(|finished| finished.started_at.is_some()));
        assert_eq!(rig.end_of(shell("exit 7")).await.failure(), &Failure::exit(7));
        assert_eq!(rig.end_of(shell("kill -USR1 $$")).await.failure(), &Failure::signal(10));
        assert_eq!(rig.end_of(shell("kill -KILL $$")).await.failure(), &Failure::signal(9));
        rig.executor.shutdown().await;
    }
}

async fn what_cannot_start_says_why() {
    let mut rig = Rig::start(None).await;
    let file = |name: &str, content: &str, mode: u32| {
        let path = rig.scratch.path().join(name);
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("set");
        path.to_str().expect("text").to_owned()
    };
    let plain = file("plain", "#!/bin/sh\n", 0o600);
    let odd = file("odd", "#!/no/such/interpreter\n", 0o700);
    let text = file("text", "hello", 0o700);
    let dir = rig.scratch.path().to_str().expect("text").to_owned();
    let in_path = |name: &str| {
        let mut spec = program(name, &[]);
        spec.environment.insert("PATH".into(), format!("/nowhere:{dir}"));
        spec
    };
    let elsewhere = JobSpec { working_directory: Some("/no/such/folder".into()), ..program("true", &[]) };
    let cases = [
        (program("no-such-program", &[]), FailureKind::NotFound, "no-such-program"),
        (program("/no/such/program", &[]), FailureKind::NotFound, "/no/such/program"),
        (program("./missing", &[]), FailureKind::NotFound, "missing"),
        (program(&plain, &[]), FailureKind::NotStarted, "not executable"),
        (in_path("plain"), FailureKind::NotStarted, "not executable"),
        (program(&odd, &[]), FailureKind::NotStarted, "interpreter"),
        (program(&text, &[]), FailureKind::NotStarted, "not a program"),
        (elsewhere, FailureKind::NotStarted, "/no/such/folder"),
    ];
    for (spec, kind, part) in cases {
        let seen = rig.end_of(spec).await;
        let failure = seen.failure();
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.message.contains(part), "{failure:?}");
        assert!(!seen.started);
    }
    assert_eq!(rig.end_of(program("true", &[])).await.outcome(), &Outcome::Succeeded);
}

async fn out_of_memory_is_told_apart() {
    let mut rig = Rig::start(None).await;
    if !rig.has(Limit::Memory) {
        return;
    }
    let requirements = Requirements::of(0, 32 << 20);
    for spec in [program("tail", &["/dev/zero"]), shell("tail /dev/zero; exit $?")] {
        let seen = rig.end_of(JobSpec { requirements: requirements.clone(), ..spec }).await;
        let failure = seen.failure();
        assert_eq!(failure.kind, FailureKind::OutOfMemory);
        assert!(failure.signal == Some(9) || failure.exit_code == Some(137), "{failure:?}");
    }
    let seen = rig.end_of(JobSpec { requirements, ..shell("kill -9 $$") }).await;
    assert_eq!(seen.failure().kind, FailureKind::Signal);
    // The slot is good for a job that needs more.
    let seen = rig.end_of(shell("head -c 200000000 /dev/zero | tail -c 100000000 | wc -c")).await;
    assert_eq!(seen.text(), "100000000\n");
}

async fn limits_on_processors_and_processes_are_in_force() {
    let mut rig = Rig::with(None, 8 << 20, 20).await;
    if rig.has(Limit::Cpu) {
        let spec = shell("while :; do :; done & sleep 0.6; kill $!; wait; times");
        let requirements = Requirements::of(200, 0);
        let seen = rig.end_of(JobSpec { requirements, ..spec }).await;
        let text = seen.text();
        let user = text.lines().nth(1).and_then(|line| line.strip_prefix("0m")?.split('s').next()?.parse::<f64>().ok());
        assert!(user.is_some_and(|seconds| seconds < 0.4), "{text}");
    }
    if rig.has(Limit::Pids) {
        let seen = rig.end_of(shell("for i in $(seq 60); do sleep 100 & done")).await;
        assert_ne!(seen.outcome(), &Outcome::Succeeded);
        assert!(seen.text().contains("fork"), "{}", seen.text());
        let seen = rig.end_of(shell("for i in $(seq 15); do sleep 0.01 & done; wait")).await;
        assert_eq!(seen.outcome(), &Outcome::Succeeded, "{}", seen.text());
    }
}

/// A job that forks, daemonises and ignores the polite signal, and prints its processes once all are there.
const STUBBORN: &str = r#"
    trap '' TERM
    dir=$(mktemp -d)
    (setsid sh -c 'trap "" TERM; (setsid sh -c "trap \"\" TERM; echo \$\$ > $0/b; sleep 1000; sleep 1000") & echo $$ > $0/a; sleep 1000; sleep 1000' "$dir" &)
    while [ ! -s $dir/a ] || [ ! -s $dir/b ]; do sleep 0.01; done
    echo $$ $(cat $dir/a) $(cat $dir/b)
    sleep 1000
    sleep 1000
"#;

async fn a_stubborn_tree_is_gone_after_a_cancel() {
    for mechanism in MECHANISMS {
        let mut rig = Rig::start(mechanism).await;
        let execution = rig.run(with_grace(shell(STUBBORN), 300));
        let tree = pids(&rig.first_line_of(Some(execution)).await);
        assert!(tree.len() == 3 && tree.iter().all(|pid| runs(*pid)));
        let asked = boottime();
        rig.executor.stop(execution, StopReason::Cancelled);
        let seen = rig.end(execution).await;
        assert!(!tree.iter().any(|pid| runs(*pid)), "{mechanism:?}");
        assert_eq!(seen.outcome(), &Outcome::Cancelled);
        let took = (boottime() - asked).0;
        assert!((300..2000).contains(&took), "{mechanism:?}: {took} ms");
        rig.executor.shutdown().await;
    }
}

async fn a_polite_job_is_asked_first_and_a_stale_one_is_not() {
    let mut rig = Rig::start(None).await;
    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    for (why, said) in [(StopReason::Cancelled, "ready\nbye\n"), (StopReason::Stale, "ready\n")] {
        let execution = rig.run(shell(polite));
        rig.first_line_of(Some(execution)).await;
        rig.executor.stop(execution, why);
        let seen = rig.end(execution).await;
        // On its other stream the shell may tell of the end of its child.
        assert_eq!((seen.outcome(), seen.stdout.as_slice()), (&Outcome::Cancelled, said.as_bytes()));
    }
    // A stop that comes before the start, and one that comes twice.
    let execution = rig.run(shell("trap '' TERM; sleep 1000; sleep 1000"));
    rig.executor.stop(execution, StopReason::Cancelled);
    rig.executor.stop(execution, StopReason::Stale);
    assert_eq!(rig.end(execution).await.outcome(), &Outcome::Cancelled);
}

async fn what_a_job_leaves_running_is_killed() {
    for mechanism in MECHANISMS {
        let mut rig = Rig::start(mechanism).await;
        let script = STUBBORN.replace("sleep 1000\n    sleep 1000\n", "exit 0\n");
        let seen = rig.end_of(shell(&script)).await;
        let tree = pids(&String::from_utf8_lossy(&seen.stdout));
        assert_eq!((seen.outcome(), tree.len()), (&Outcome::Succeeded, 3));
        assert!(!tree.iter().any(|pid| runs(*pid)), "{mechanism:?}");
        rig.executor.shutdown().await;
    }
}

async fn a_fork_bomb_ends() {
    let mut rig = Rig::with(None, 8 << 20, 200).await;
    let execution =
        rig.run(with_grace(shell("bomb() { bomb | bomb & }; bomb 2>/dev/null & echo go; exec sleep 1000"), 50));
    rig.first_line_of(Some(execution)).await;
    rig.executor.stop(execution, StopReason::Cancelled);
    assert_eq!(rig.end(execution).await.outcome(), &Outcome::Cancelled);
    assert_eq!(rig.end_of(shell("sleep 0.01 & wait")).await.outcome(), &Outcome::Succeeded);
}

async fn a_job_that_runs_too_long_is_stopped() {
    let mut rig = Rig::start(None).await;
    let mut spec = with_grace(shell("trap '' TERM; echo on; sleep 1000; sleep 1000"), 100);
    spec.timeouts.run = Some(Millis(200));
    let seen = rig.end_of(spec).await;
    assert_eq!(seen.failure().kind, FailureKind::RunTimeout);
    assert_eq!((seen.failure().signal, seen.text().as_str()), (Some(9), "on\n"));
}

async fn nothing_outlives_the_lease() {
    let mut rig = Rig::start(None).await;
    rig.executor.set_lease(boottime() + Millis(300));
    let seen = rig.end_of(shell("trap '' TERM; sleep 1000; sleep 1000")).await;
    assert_eq!(seen.failure(), &Failure::new(FailureKind::WorkerLost, "stopped: the lease ran out"));
    // Without a lease nothing starts; with a new one all is well.
    let seen = rig.end_of(program("true", &[])).await;
    assert_eq!((seen.failure().kind, seen.started), (FailureKind::WorkerLost, false));
    rig.executor.set_lease(boottime() + Millis::seconds(60));
    assert_eq!(rig.end_of(program("true", &[])).await.outcome(), &Outcome::Succeeded);
}

/// An agent in a process of its own.
struct Agent(Child);

impl Agent {
    fn kill(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts an agent; returns it with its job's and its guardian's process.
fn agent(lease_ms: Option<u64>) -> (Agent, Vec<Pid>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg("agent").stdout(Stdio::piped());
    if let Some(lease) = lease_ms {
        command.env("TEST_LEASE_MS", lease.to_string());
    }
    let mut agent = command.spawn().expect("an agent");
    let lines = BufReader::new(agent.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let line = lines.into_iter().find_map(|line| Some(line.split_once("job ")?.1.to_owned())).expect("a job");
    (Agent(agent), pids(&line))
}

async fn jobs_of_a_dead_agent_are_ended() {
    let (mut agent, processes) = agent(None);
    agent.kill();
    processes.into_iter().for_each(await_end);
}

async fn jobs_of_a_frozen_agent_are_ended() {
    let (mut agent, processes) = agent(Some(1500));
    let frozen = Pid::from_child(&agent.0);
    rustix::process::kill_process(frozen, Signal::STOP).expect("frozen");
    await_end(processes[0]);
    assert!(runs(processes[1]), "the guardian goes on");
    agent.kill();
    await_end(processes[1]);
}

async fn a_lost_guardian_is_replaced() {
    for mechanism in MECHANISMS {
        let mut rig = Rig::start(mechanism).await;
        rig.end_of(program("true", &[])).await;
        let execution = rig.run(shell("setsid sleep 1000 & echo $PPID $$ $!; exec sleep 1000"));
        let processes = pids(&rig.first_line_of(Some(execution)).await);
        rustix::process::kill_process(processes[0], Signal::KILL).expect("killed");
        let seen = rig.end(execution).await;
        assert_eq!(seen.failure().kind, FailureKind::WorkerLost);
        assert!(!processes.iter().any(|pid| runs(*pid)), "{mechanism:?}");
        assert_eq!(rig.end_of(program("true", &[])).await.outcome(), &Outcome::Succeeded);
        rig.executor.shutdown().await;
    }
}

async fn the_guardian_shrugs_off_polite_signals() {
    let mut rig = Rig::start(None).await;
    let script = "for s in TERM INT HUP QUIT; do kill -$s $PPID; done; exec grep Sig[BI] /proc/self/status";
    let seen = rig.end_of(shell(script)).await;
    assert_eq!(seen.outcome(), &Outcome::Succeeded, "{}", seen.text());
    for line in seen.text().lines() {
        let set = line.split('\t').nth(1).and_then(|set| u64::from_str_radix(set, 16).ok()).expect("a set");
        let polite = [1, 2, 3, 15].map(|signal| 1u64 << (signal - 1)).iter().sum::<u64>();
        assert_eq!(set & polite, 0, "{line}");
    }
    // The job itself is not deaf.
    assert_eq!(rig.end_of(shell("kill -TERM $$")).await.failure(), &Failure::signal(15));
    assert_eq!(rig.end_of(shell("kill -HUP $$")).await.failure(), &Failure::signal(1));
}

async fn much_output_arrives_whole_and_in_order_through_a_small_budget() {
    let mut rig = Rig::with(None, 512 << 10, 4096).await;
    let seen = rig.end_of(shell("seq 1 13000000 & seq -f 'e%.0f' 1 1000 >&2; wait")).await;
    assert_eq!(seen.outcome(), &Outcome::Succeeded);
    assert!(seen.stdout.len() > 100_000_000);
    let mut want = 0;
    for line in seen.stdout.split_inclusive(|byte| *byte == b'\n') {
        want += 1;
        let number = line[..line.len() - 1].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        assert_eq!(number, want);
    }
    assert_eq!((want, seen.entries), (13_000_000, 13_001_000));
    assert!(seen.stderr.starts_with(b"e1\ne2\n") && seen.stderr.ends_with(b"e1000\n"));
}

async fn a_job_that_waits_for_budget_can_be_stopped_and_loses_nothing() {
    let mut rig = Rig::with(None, 300 << 10, 4096).await;
    // Does not compress, so that it uses up the budget.
    let mut spec =
        with_grace(shell("trap '' TERM; echo go; head -c 3000000 /dev/urandom | base64 -w 100; sleep 1000"), 0);
    spec.timeouts.run = Some(Millis::seconds(600));
    let execution = rig.run(spec);
    let mut chunks = Vec::new();
    while rig.budget.available_permits() > 150 << 10 {
        chunks.push(rig.events.recv().await.expect("open"));
    }
    rig.executor.stop(execution, StopReason::Cancelled);
    // Nothing is given back until the job is known to be stuck; then all of what came.
    let mut rest = 0;
    loop {
        let event = match chunks.pop() {
            Some(event) => event,
            None => tokio::time::timeout(LONG, rig.events.recv()).await.expect("in time").expect("open"),
        };
        match event {
            ExecutorEvent::Logs(chunk) => {
                rest += u64::from(chunk.count);
                rig.budget.add_permits(chunk.data.len());
            }
            ExecutorEvent::Ended(finished) => {
                assert_eq!((finished.log_entries, finished.outcome), (rest, Outcome::Cancelled));
                break;
            }
            _ => {}
        }
    }
}

async fn odd_output_is_kept() {
    let mut rig = Rig::start(None).await;
    let seen = rig.end_of(shell("head -c 10000000 /dev/zero | tr '\\0' x; echo; printf 'no newline'")).await;
    assert_eq!((seen.stdout.len(), seen.unfinished), (10_000_011, true));
    assert!(seen.stdout.ends_with(b"xxx\nno newline"));
    let path = rig.scratch.path().join("garbage");
    let script = format!("head -c 3000000 /dev/urandom > {0}; cat {0}; cat {0} >&2", path.display());
    let seen = rig.end_of(shell(&script)).await;
    let garbage = std::fs::read(path).expect("readable");
    assert!(seen.stdout == garbage && seen.stderr == garbage);
    // A job may close its streams long before it ends.
    let seen = rig.end_of(shell("printf 'a\\n\\nb\\n'; exec 1>&- 2>&-; sleep 0.05")).await;
    assert_eq!(seen.text(), "a\n\nb\n");
}

async fn lines_are_seen_as_they_come() {
    let mut rig = Rig::start(None).await;
    let fifo = rig.scratch.path().join("go");
    let script = format!("mkfifo {0}; echo first; read answer < {0}; echo $answer", fifo.display());
    let execution = rig.run(shell(&script));
    assert_eq!(rig.first_line_of(Some(execution)).await, "first");
    std::fs::write(&fifo, "second\n").expect("written");
    assert_eq!(rig.end(execution).await.text(), "first\nsecond\n");
}

async fn secrets_are_masked() {
    let mut rig = Rig::start(None).await;
    let mut spec = shell(
        r#"printf "start $TOKEN end\n"; printf 's3cr'; sleep 0.05; printf 'et-value!\n' >&2; printf 'et-value!\n'
           printf "$TOKEN" | base64; head -c 65533 /dev/zero | tr '\0' x; echo "$TOKEN"
           echo "50 at $TOKEN" > "$HODEI_PROGRESS""#,
    );
    spec.secrets.insert("TOKEN".into(), Secret("s3cret-value!".into()));
    let seen = rig.end_of(spec).await;
    let want = format!("start *** end\n***\n***\n{}***\n", "x".repeat(65533));
    assert_eq!(String::from_utf8_lossy(&seen.stdout), want);
    assert_eq!(seen.stderr, b"et-value!\n");
    assert_eq!(seen.progress.last().map(|progress| progress.message.as_str()), Some("at ***"));
}

async fn progress_and_result_come_through() {
    let mut rig = Rig::start(None).await;
    let script = r#"for i in $(seq 1 2000); do echo "$((i / 20)) step $i"; done > $HODEI_PROGRESS
                    echo '{"answer": 42}' > $HODEI_RESULT"#;
    let seen = rig.end_of(shell(script)).await;
    let last = Progress { basis_points: 10_000, message: "step 2000".into() };
    assert_eq!(seen.progress.last(), Some(&last));
    assert!(seen.progress.len() < 20, "{}", seen.progress.len());
    assert_eq!(seen.finished.and_then(|finished| finished.result).as_deref(), Some(&b"{\"answer\": 42}\n"[..]));
    for (script, part) in [
        ("echo '{oops' > $HODEI_RESULT", "not JSON"),
        ("head -c 2000000 /dev/zero | tr '\\0' 1 > $HODEI_RESULT", "larger"),
        ("mkfifo $HODEI_RESULT", "read"),
    ] {
        let seen = rig.end_of(shell(script)).await;
        if script.starts_with("mkfifo") {
            assert_eq!(seen.outcome(), &Outcome::Succeeded);
            continue;
        }
        assert_eq!(seen.failure().kind, FailureKind::Error);
        assert!(seen.failure().message.contains(part), "{:?}", seen.failure());
    }
    let seen = rig.end_of(shell("echo bad > $HODEI_RESULT; exit 3")).await;
    assert_eq!(seen.failure(), &Failure::exit(3));
}

async fn the_environment_is_clean() {
    let mut rig = Rig::start(None).await;
    let mut spec = program("env", &[]);
    spec.environment.insert("LANG".into(), "de_DE.UTF-8".into());
    spec.environment.insert("HODEI_ATTEMPT".into(), "999".into());
    spec.secrets.insert("KEY".into(), Secret("hidden-thing".into()));
    let seen = rig.end_of(spec).await;
    let text = seen.text();
    let found: HashMap<_, _> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let mut names: Vec<_> = found.keys().copied().collect();
    names.sort_unstable();
    let want = "HODEI_ATTEMPT HODEI_CHILDREN HODEI_DEPENDENCIES HODEI_END HODEI_EXECUTION_ID HODEI_INPUT HODEI_JOB_DATA \
                HODEI_JOB_ID HODEI_PROGRESS HODEI_RESULT HODEI_SCRATCH HOME KEY LANG PATH SHELL TMPDIR USER";
    assert_eq!(names.join(" "), want);
    assert_eq!((found["LANG"], found["HODEI_ATTEMPT"], found["KEY"]), ("de_DE.UTF-8", "3", "***"));
    // The job of a schedule knows whose it is, and for which tick.
    let context = Context { tick: Some(("backup".into(), Time(1_766_890_800_000))), ..Context::default() };
    let execution = rig.run_in(shell("echo $HODEI_SCHEDULE $HODEI_TICK"), context);
    assert_eq!(rig.end(execution).await.text(), "backup 2025-12-28T03:00:00Z\n");
    // Nothing is open but the standard descriptors and the one that ls itself uses; the guardian tells nothing either.
    assert_eq!(rig.end_of(program("ls", &["/proc/self/fd"])).await.text(), "0\n1\n2\n3\n");
    assert_eq!(rig.end_of(shell("cat /proc/$PPID/environ")).await.text(), "");
    // No signal is held back or caught, and a broken pipe ends a program, whatever we and the guardian do with ours.
    let status = rig.end_of(program("cat", &["/proc/self/status"])).await.text();
    let set = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        u64::from_str_radix(line.trim(), 16).expect("a set of signals")
    };
    const SIGPIPE: u64 = 1 << (13 - 1);
    assert_eq!((set("SigBlk:"), set("SigIgn:") & SIGPIPE, set("SigCgt:")), (0, 0, 0));
}

async fn stdin_and_scripts() {
    let mut rig = Rig::start(None).await;
    let seen = rig.end_of(JobSpec { stdin: b"from outside".to_vec(), ..program("cat", &[]) }).await;
    assert_eq!((seen.text().as_str(), seen.unfinished), ("from outside", true));
    assert_eq!(rig.end_of(shell("cat; echo empty")).await.text(), "empty\n");
    let large = vec![b'y'; 900_000];
    let seen = rig.end_of(JobSpec { stdin: large.clone(), ..program("cat", &[]) }).await;
    assert_eq!(seen.stdout, large);

    let script = |interpreter: &str, content: &str| {
        JobSpec::new("test", Work::Script { interpreter: interpreter.into(), content: content.into() })
    };
    assert_eq!(rig.end_of(script("", "echo plain $#")).await.text(), "plain 0\n");
    let seen = rig.end_of(script("sh -e -u", "echo strict\nfalse\necho never")).await;
    assert_eq!((seen.text().as_str(), seen.failure()), ("strict\n", &Failure::exit(1)));
    assert_eq!(rig.end_of(script("no-such", "x")).await.failure().kind, FailureKind::NotFound);
    // Too large for one packet.
    let mut spec = program("sh", &["-c", "echo ${#BIG}"]);
    spec.environment.insert("BIG".into(), "b".repeat(100_000));
    assert_eq!(rig.end_of(spec).await.text(), "100000\n");
}

async fn jobs_of_one_slot_do_not_see_each_others_files() {
    let mut rig = Rig::start(None).await;
    let mess = "echo x > file; mkdir -p a/b; touch a/b/c; echo 1 > $HODEI_RESULT; mktemp; rm $HODEI_PROGRESS; pwd";
    let first = rig.end_of(shell(mess)).await.text();
    let seen =
        rig.end_of(shell("ls -A; ls -A $TMPDIR; test -p $HODEI_PROGRESS && echo 9 end > $HODEI_PROGRESS; pwd")).await;
    let pwd = first.lines().last().expect("a line");
    assert_eq!(seen.text(), format!("{pwd}\n"));
    assert_eq!(seen.progress.len(), 1);
    assert_eq!(seen.finished.and_then(|finished| finished.result), None);
    // Even when the working directory itself is gone.
    rig.end_of(shell("rm -rf \"$PWD\"")).await;
    assert_eq!(rig.end_of(shell("pwd")).await.text(), format!("{pwd}\n"));
}

/// Folders that nothing has happened in are not looked through.
async fn what_a_job_leaves_is_seen_after_many_that_left_nothing() {
    let mut rig = Rig::start(None).await;
    let messes = [
        ("echo 1 > $HODEI_RESULT", true),
        ("echo 1 > ../new && mv ../new $HODEI_RESULT && touch -d @0 .. .", true),
        ("echo x > file; touch -d @0 file . ..", false),
        ("mkdir -p a/b && rmdir a/b a; rm $HODEI_PROGRESS; ln -s /dev/null $HODEI_PROGRESS", false),
        ("echo '{\"n\": 1}' > $HODEI_JOB_DATA; echo 1 > $HODEI_RESULT", true),
    ];
    for (mess, leaves_result) in messes {
        for quiet in ["sleep 0.1", "true", "true"] {
            assert_eq!(rig.end_of(shell(quiet)).await.outcome(), &Outcome::Succeeded);
        }
        let left = rig.end_of(shell(mess)).await.finished.expect("an end");
        assert_eq!((left.outcome, left.result.is_some()), (Outcome::Succeeded, leaves_result), "{mess}");
        assert_eq!(left.data.is_some(), mess.contains("DATA"), "{mess}");
        let next = rig.end_of(shell("ls -A . ..; echo 9 end > $HODEI_PROGRESS; test -p $HODEI_PROGRESS")).await;
        assert_eq!(next.outcome(), &Outcome::Succeeded, "{mess}");
        assert_eq!((next.text().as_str(), next.progress.len()), (".:\n\n..:\nprogress\nwork\n", 1), "{mess}");
        assert_eq!(next.finished.and_then(|finished| finished.result), None, "{mess}");
    }
}

async fn a_shutdown_leaves_nothing() {
    let mut rig = Rig::start(None).await;
    let execution = rig.run(shell("trap '' TERM; echo $$ $PPID; sleep 1000; sleep 1000"));
    let processes = pids(&rig.first_line_of(Some(execution)).await);
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", processes[0].as_raw_nonzero())).expect("alive");
    rig.executor.clone().shutdown().await;
    assert_eq!(rig.end(execution).await.outcome(), &Outcome::Released);
    assert!(!processes.iter().any(|pid| runs(*pid)));
    assert!(!rig.scratch.path().join("worker").exists());
    for path in groups.lines().filter_map(|line| line.split(':').nth(2)).filter(|path| path.contains("hodei-")) {
        for mount in ["cpu", "memory", "pids", "unified", ""] {
            assert!(!Path::new("/sys/fs/cgroup").join(mount).join(path.trim_start_matches('/')).exists(), "{path}");
        }
    }
}
