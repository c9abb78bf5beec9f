use super::*;
use crate::Aside;
use crate::conformance::{self, Leader, for_each_check, job_id, jobs_batch, known, listed, new, pending};
use checkpoint::Checkpointer;
use commits::Commits;
use hodei_core::{brain::Batch, protocol::LogChunk, state::State};
use progress::Progress;
use std::{
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::Instant,
};
use tables::Tables;

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
    let mut writer = writer_in(folder.path());
    writer.lead().expect("lead");
    writer.commit(entered(1, [1])).expect("commit");
    writer.tables.catch_up();
    let pages: i64 = writer.tables.connection().query_one("PRAGMA page_count", (), |row| row.get(0)).expect("pages");
    let limit = |pages: i64| format!("PRAGMA max_page_count = {pages}");
    writer.tables.connection().query_one(&limit(pages), (), |_| Ok(())).expect("limit");
    let listed =
        |writer: &Hand| pages::list(writer.tables.connection(), &Filter::default(), None, 9_999).expect("list").jobs;
    // The ledger has room: what the tables have not is answered until they fail, and then not any more.
    let mut answered = 1;
    while !writer.progress.is_failing() {
        answered += 1;
        writer.commit(entered(answered, [answered])).expect("commit");
        writer.tables.catch_up();
    }
    let large = entered(answered + 1, 5_000..7_000);
    assert!(matches!(writer.commit(Arc::clone(&large)), Err(StoreError::Unavailable(_))));
    let small = entered(answered + 1, [9_999]);
    assert!(matches!(writer.commit(small), Err(StoreError::Unavailable(_))));
    assert_eq!(listed(&writer).len() as u64, answered - 1);
    assert_eq!(jobs_in(crashed(folder.path()).path()).len() as u64, answered, "elsewhere there is room");
    writer.tables.connection().query_one(&limit(1 << 30), (), |_| Ok(())).expect("limit");
    writer.commit(large).expect("the same commit again");
    assert_eq!(listed(&writer).len() as u64, answered + 2_000);
}

/// A copy of everything that is on disk, as a crash at this moment would leave it.
fn crashed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("folder");
    for file in std::fs::read_dir(folder).expect("folder") {
        let file = file.expect("file");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copy");
    }
    copy
}

fn jobs_in(folder: &Path) -> Vec<Job> {
    drop(Sqlite::open(folder.join("hodei.db")).expect("open"));
    let connection = open_for_writing(&folder.join("hodei.db")).expect("open");
    let mut jobs = pages::list(&connection, &Filter::default(), None, 99_999).expect("list").jobs;
    jobs.reverse();
    jobs
}

/// Both ends of the writing side, on the thread of the test: what happens when is the test's to say.
struct Hand {
    commits: Commits,
    tables: Tables,
    progress: Arc<Progress>,
}

impl Hand {
    fn lead(&mut self) -> Result<Leadership, StoreError> {
        self.commits.lead(&mut self.tables)
    }

    fn commit(&mut self, commit: Arc<Commit>) -> Result<(), StoreError> {
        self.commits.commit(commit, &mut self.tables)
    }
}

fn writer_in(folder: &Path) -> Hand {
    let (path, progress) = (folder.join("hodei.db"), Arc::default());
    let (commits, tables) = commits::open(open_for_writing(&path).expect("open"), &path, &progress).expect("writer");
    Hand { commits, tables, progress }
}

fn entered(number: u64, jobs: impl IntoIterator<Item = u64>) -> Arc<Commit> {
    Arc::new(batch(number, jobs))
}

#[test]
fn what_only_the_ledger_has_comes_back() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = writer_in(folder.path());
    writer.lead().expect("lead");
    writer.commit(entered(1, [1])).expect("commit");
    writer.tables.catch_up();
    // A batch that was empty has a number, too.
    for (number, job) in [(2, 2), (4, 3), (5, 4)] {
        writer.commit(entered(number, [job])).expect("commit");
    }
    assert!(writer.tables.is_behind(), "small commits are answered before their rows are written");
    let (whole, torn, stray) = (crashed(folder.path()), crashed(folder.path()), crashed(folder.path()));
    assert_eq!(jobs_in(whole.path()), [1, 2, 3, 4].map(pending));
    assert_eq!(jobs_in(whole.path()), [1, 2, 3, 4].map(pending), "and stays");

    let ledger = torn.path().join("hodei.db-ledger-1");
    let mut bytes = std::fs::read(&ledger).expect("ledger");
    bytes[3 * 4096 + 100] ^= 1;
    std::fs::write(&ledger, bytes).expect("ledger");
    assert_eq!(jobs_in(torn.path()), [1, 2, 3].map(pending), "an entry that is not whole was not answered");

    // Not what belongs to this database.
    let ledger = stray.path().join("hodei.db-ledger-1");
    let mut bytes = std::fs::read(&ledger).expect("ledger");
    bytes.drain(..2 * 4096);
    std::fs::write(&ledger, bytes).expect("ledger");
    let refused = Sqlite::open(stray.path().join("hodei.db"));
    assert!(matches!(refused, Err(StoreError::Open(why)) if why.contains("does not continue it")));
}

#[test]
fn a_large_commit_takes_with_it_what_only_the_ledger_has() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = writer_in(folder.path());
    writer.lead().expect("lead");
    writer.commit(entered(1, [1])).expect("commit");
    writer.commit(entered(2, 2..200)).expect("commit");
    assert!(!writer.tables.is_behind());
    writer.commit(entered(3, [200])).expect("commit");
    assert_eq!(jobs_in(crashed(folder.path()).path()), (1..=200).map(pending).collect::<Vec<_>>());
    assert!(matches!(writer.commit(Arc::new(Commit { epoch: 9, ..batch(4, []) })), Err(StoreError::Deposed { .. })));
    writer.commit(entered(3, [300])).expect("a repeat");
    let second = writer.lead().expect("lead");
    assert_eq!(second.epoch, 2);
    assert!(matches!(writer.commit(entered(4, [4])), Err(StoreError::Deposed { ours: 1, current: 2 })));
    assert_eq!(jobs_in(crashed(folder.path()).path()).len(), 200);
}

/// Power cuts, while both files of the ledger are begun anew again and again: of the tables nothing is left that was not
/// synced.
#[test]
fn the_ledger_goes_round() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = writer_in(folder.path());
    let mut checkpointer = Checkpointer::start(&folder.path().join("hodei.db")).expect("checkpointer");
    writer.lead().expect("lead");
    let (mut synced, mut syncing) = (crashed(folder.path()), None);
    let mut rounds = 0;
    for n in 1..=1_000 {
        writer.commit(entered(n, [n])).expect("commit");
        if !writer.tables.is_behind() {
            (synced, syncing) = (crashed(folder.path()), None);
        }
        if n % 3 == 0 {
            writer.tables.catch_up();
        }
        let (began, durable) = (checkpointer.is_syncing(), writer.progress.durable());
        writer.tables.tend(&mut checkpointer);
        writer.commits.tend();
        if writer.progress.durable() != durable {
            synced = syncing.take().expect("a sync");
            rounds += 1;
        }
        if checkpointer.is_syncing() && !began {
            syncing = Some(crashed(folder.path()));
        }
        // Some commits go by while the tables are synced, but never so many that the ledger is full before.
        while n % 7 == 0 && checkpointer.is_syncing() {
            std::thread::yield_now();
            checkpointer.synced();
        }
        if n % 41 == 0 {
            let left = crashed(synced.path());
            for ledger in ["hodei.db-ledger-1", "hodei.db-ledger-2"] {
                std::fs::copy(folder.path().join(ledger), left.path().join(ledger)).expect("copy");
            }
            assert_eq!(jobs_in(left.path()).len() as u64, n);
        }
    }
    assert!(rounds > 10, "{rounds} rounds");
}

#[tokio::test]
async fn an_orderly_end_leaves_no_ledger() {
    let folder = tempfile::tempdir().expect("folder");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path().join("hodei.db")).expect("open"));
    Leader::of(&store).await.commit(jobs_batch([new(pending(1))]), vec![]).await;
    drop(store);
    let files = std::fs::read_dir(folder.path()).expect("folder").map(|file| file.expect("file").file_name());
    assert_eq!(files.collect::<Vec<_>>(), ["hodei.db"]);
    assert_eq!(jobs_in(folder.path()), [pending(1)]);
}

#[test]
fn a_database_has_one_server() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("hodei.db");
    let _first = Sqlite::open(&path).expect("open");
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Open(why)) if why.contains("another server")));
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
const JOBS_PER_COMMIT: u64 = 20;

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
        // Now and then one that is too large for the ledger.
        let log =
            LogChunk { job: job_id(0), execution: ExecutionId::NIL, first: round, count: 1, data: [7; 99_999].into() };
        let logs = if round % 7 == 6 { vec![log] } else { vec![] };
        leader.commit(jobs_batch(ids(round).map(|n| new(pending(n))).chain(before)), logs).await;
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
    drop(Sqlite::open(path).expect("open"));
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
