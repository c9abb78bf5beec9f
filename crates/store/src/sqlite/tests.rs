use super::*;
use crate::Aside;
use crate::conformance::{self, Leader, for_each_check, job_id, jobs_batch, known, listed, new, pending};
use hodei_core::{brain::Batch, protocol::LogChunk, state::State};
use std::{
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::Instant,
};
use write::Writer;

macro_rules! conformance_tests {
    ($($check:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            let folder = tempfile::tempdir().expect("folder");
            let store = Sqlite::open(folder.path().join("hodei.db")).expect("open");
            conformance::$check(Arc::new(store)).await;
        }
    )*};
}
for_each_check!(conformance_tests);

#[test]
fn the_file_is_private() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("hodei.db");
    let _store = Sqlite::open(&path).expect("open");
    for file in std::fs::read_dir(folder.path()).expect("folder") {
        let file = file.expect("file");
        assert_eq!(file.metadata().expect("metadata").permissions().mode() & 0o777, 0o600, "{:?}", file.path());
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = tempfile::tempdir().expect("folder");
    let text = folder.path().join("text");
    std::fs::write(&text, "this is a plain text file and not a database at all ".repeat(50)).expect("write");
    for path in [text, folder.path().join("missing/hodei.db")] {
        let Err(StoreError::Open(why)) = Sqlite::open(&path) else { panic!("must not open {path:?}") };
        assert!(why.contains(&path.display().to_string()), "{why}");
    }
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("hodei.db");
    drop(Sqlite::open(&path).expect("open"));
    let connection = Connection::open(&path).expect("open");
    connection.execute("INSERT INTO schema_migrations VALUES (9999, 'future')", ()).expect("insert");
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Open(why)) if why.contains("9999")));
}

#[tokio::test]
async fn an_old_database_comes_up() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("hodei.db");
    let old = Connection::open(&path).expect("open");
    old.execute_batch("CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT")
        .expect("table");
    for step in &migration::ALL[..2] {
        old.execute_batch(step.sqlite).expect(step.name);
        old.execute("INSERT INTO schema_migrations VALUES (?1, ?2)", (step.version, step.name)).expect("version");
    }
    for row in conformance::old_rows() {
        let job = row.columns();
        let sql = "INSERT INTO jobs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let key = (job.id, job.state, job.queue, row.job.class().0, job.priority);
        let row = (key.0, key.1, key.2, key.3, key.4, job.seq, job.due_at, job.created_at, &row.record);
        old.execute(sql, row).expect("row");
    }
    old.execute("INSERT INTO placements VALUES (1, 5, ?1)", (conformance::old_placements(),)).expect("placements");
    drop(old);
    for _ in 0..2 {
        drop(Sqlite::open(&path).expect("open"));
    }
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&path).expect("open"));
    conformance::check_old_database(&store).await;
}

#[tokio::test]
async fn what_was_committed_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("hodei.db");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&path).expect("open"));
    Leader::of(&store).await.commit(jobs_batch([new(pending(1))]), vec![]).await;
    drop(store);
    assert!(!folder.path().join("hodei.db-wal").exists(), "the log was folded into the file");
    let store = Sqlite::open(&path).expect("open again");
    assert_eq!(store.jobs(vec![job_id(1)]).await.expect("jobs"), [pending(1)]);
    assert_eq!(store.lead().await.expect("lead").epoch, 2);
}

fn batch(number: u64, jobs: impl IntoIterator<Item = u64>) -> Commit {
    let batch = Batch { number, ..jobs_batch(jobs.into_iter().map(|n| new(pending(n)))) };
    Commit { epoch: 1, batch, logs: vec![], aside: Aside::default() }
}

#[test]
fn a_full_disk_fails_one_commit_whole_and_the_next_may_pass() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = Writer::new(open_for_writing(&folder.path().join("hodei.db")).expect("open"));
    writer.lead().expect("lead");
    writer.commit(&batch(1, [1])).expect("commit");
    let pages: i64 = writer.connection().query_one("PRAGMA page_count", (), |row| row.get(0)).expect("pages");
    let limit = |pages: i64| format!("PRAGMA max_page_count = {pages}");
    writer.connection().query_one(&limit(pages), (), |_| Ok(())).expect("limit");
    let large = batch(2, 2..2_000);
    assert!(matches!(writer.commit(&large), Err(StoreError::Unavailable(_))));
    assert_eq!(pages::list(writer.connection(), &Filter::default(), None, 9).expect("list").jobs, [pending(1)]);
    writer.connection().query_one(&limit(1 << 30), (), |_| Ok(())).expect("limit");
    writer.commit(&large).expect("the same commit again");
    assert_eq!(pages::list(writer.connection(), &Filter::default(), None, 9_999).expect("list").jobs.len(), 1_999);
}

/// Commits find room in the log, so that a sync need not make the file longer.
#[tokio::test]
async fn the_log_is_longer_than_it_needs_to_be() {
    let folder = tempfile::tempdir().expect("folder");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path().join("hodei.db")).expect("open"));
    let mut leader = Leader::of(&store).await;
    let log = || std::fs::metadata(folder.path().join("hodei.db-wal")).expect("log").len();
    let chunk =
        |first| LogChunk { job: job_id(1), execution: ExecutionId::NIL, first, count: 1, data: vec![1; 100].into() };
    let mut lengths = Vec::new();
    for first in 0..100 {
        leader.commit(Batch::default(), vec![chunk(first)]).await;
        // The writer lengthens it after it has answered, and takes the next commit after that.
        lengths.push(log());
    }
    let changes = lengths.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 10, "{changes} of 100 commits made it longer: {lengths:?}");
    let read =
        store.logs(job_id(1), LogPosition { execution: ExecutionId::NIL, entry: 0 }, 1 << 20).await.expect("logs");
    assert_eq!(read.len(), 100);
}

/// The log must not grow without end under load, and be given back when there is none.
#[tokio::test]
async fn the_log_is_folded_away() {
    let folder = tempfile::tempdir().expect("folder");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path().join("hodei.db")).expect("open"));
    let mut leader = Leader::of(&store).await;
    let log = || std::fs::metadata(folder.path().join("hodei.db-wal")).expect("log").len();
    let chunk = |first| LogChunk {
        job: job_id(1),
        execution: ExecutionId::NIL,
        first,
        count: 1,
        data: vec![1; 1 << 20].into(),
    };
    for round in 0..30 {
        leader.commit(Batch::default(), (0..8).map(|i| chunk(round * 8 + i)).collect()).await;
    }
    assert!(log() < 180 << 20, "{} bytes", log());
    let begin = Instant::now();
    while log() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} bytes", log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Every statement on a table that grows must go by an index, however many rows there are.
#[test]
fn no_statement_scans_what_grows() {
    let folder = tempfile::tempdir().expect("folder");
    let connection = open_for_writing(&folder.path().join("hodei.db")).expect("open");
    for sql in read::ALL.iter().chain(&pages::ALL).chain(&rows::ALL).chain(&rows::FORGET) {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("plan");
        let mut rows = statement.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().expect("row") {
            steps.push(row.get::<_, String>(3).expect("detail"));
        }
        let searches = |step: &String| step.starts_with("SEARCH") || step.contains("SCALAR SUBQUERY");
        let constant = |step: &String| step == "SCAN CONSTANT ROW";
        assert!(steps.iter().any(searches), "{sql}: {steps:?}");
        assert!(steps.iter().all(|step| searches(step) || constant(step)), "{sql}: {steps:?}");
    }
}

const CHILD_DATABASE: &str = "HODEI_STORE_CHILD_DATABASE";
const JOBS_PER_COMMIT: u64 = 50;

/// Not a test of its own: the process that the next test kills. Commit `n` adds `JOBS_PER_COMMIT` pending jobs and moves
/// those of commit `n - 1` on.
#[tokio::test]
async fn child_that_commits_until_killed() {
    let Ok(path) = std::env::var(CHILD_DATABASE) else { return };
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(path).expect("open"));
    let done = listed(&store, &Filter::default(), || 10_000).await.len() as u64;
    let mut leader = Leader::of(&store).await;
    for round in done / JOBS_PER_COMMIT.. {
        let ids = |round: u64| round * JOBS_PER_COMMIT..(round + 1) * JOBS_PER_COMMIT;
        let succeeded = |n| pending_but(n, State::Succeeded { at: Time(1) });
        let before = round.checked_sub(1).into_iter().flat_map(ids).map(|n| known(succeeded(n)));
        leader.commit(jobs_batch(ids(round).map(|n| new(pending(n))).chain(before)), vec![]).await;
        println!("committed {round}");
    }
}

fn pending_but(n: u64, state: State) -> Job {
    Job { state, ..pending(n) }
}

#[test]
fn a_killed_process_loses_nothing_it_acknowledged() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("hodei.db");
    for life in 0..5 {
        let acknowledged = commit_until_killed(&path, Duration::from_millis(60 + life * 37));
        check_after_crash(&path, acknowledged);
    }
}

/// The number of the last commit that was acknowledged.
fn commit_until_killed(path: &Path, after: Duration) -> Option<u64> {
    let mut child = Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "sqlite::tests::child_that_commits_until_killed", "--nocapture"])
        .env(CHILD_DATABASE, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("child");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let number = |line: String| line.strip_prefix("committed ").and_then(|number| number.parse().ok());
    let first: u64 = lines.by_ref().find_map(number).expect("a commit");
    std::thread::sleep(after);
    child.kill().expect("SIGKILL");
    let last = lines.filter_map(number).last();
    child.wait().expect("wait");
    last.or(Some(first))
}

fn check_after_crash(path: &Path, acknowledged: Option<u64>) {
    let connection = open_for_writing(path).expect("open");
    let integrity: String = connection.query_one("PRAGMA integrity_check", (), |row| row.get(0)).expect("check");
    assert_eq!(integrity, "ok");
    let ids: Vec<JobId> = connection
        .prepare("SELECT id FROM jobs ORDER BY id")
        .and_then(|mut all| all.query_map((), |row| row.get(0))?.collect::<Result<Vec<Vec<u8>>, _>>())
        .expect("ids")
        .iter()
        .filter_map(|id| JobId::from_slice(id))
        .collect();
    let jobs = read::jobs(&connection, &ids).expect("jobs");
    let commits = jobs.len() as u64 / JOBS_PER_COMMIT;
    assert_eq!(jobs.len() as u64 % JOBS_PER_COMMIT, 0, "a commit is partial");
    assert!(Some(commits) > acknowledged, "{commits} commits, but {acknowledged:?} was acknowledged");
    for (n, job) in (0..).zip(&jobs) {
        let is_last = n / JOBS_PER_COMMIT == commits - 1;
        let expected = if is_last { pending(n) } else { pending_but(n, State::Succeeded { at: Time(1) }) };
        assert_eq!(*job, expected);
    }
    assert_eq!(read::payloads(&connection, &ids).expect("payloads").len(), jobs.len());
}
