use super::*;
use crate::conformance::{self, Leader, for_each_check, job_id, jobs_batch, new, pending};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_postgres::types::ToSql;

/// Where a PostgreSQL server is that tests may make databases in, such as `postgres://postgres@127.0.0.1/postgres`.
const SERVER: &str = "HODEI_TEST_POSTGRES";

/// How long tests wait for a server that does not answer.
const SHORT: Duration = Duration::from_secs(1);

macro_rules! conformance_tests {
    ($($check:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            let Some(database) = Database::create().await else { return };
            conformance::$check(database.store().await).await;
            database.remove().await;
        }
    )*};
}
for_each_check!(conformance_tests);

/// An empty database of one test.
struct Database {
    server: Config,
    name: String,
    url: String,
}

impl Database {
    /// None where there is no server to test with; on CI that is a failure.
    async fn create() -> Option<Self> {
        let Ok(server_url) = std::env::var(SERVER) else {
            assert!(std::env::var_os("CI").is_none(), "{SERVER} must be set on CI");
            #[allow(clippy::print_stderr)]
            {
                eprintln!("skipped: {SERVER} is not set");
            }
            return None;
        };
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hodei_test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let server = Config::from_str(&server_url).expect("url");
        let (base, _) = server_url.rsplit_once('/').expect("a database in the url");
        let url = format!("{base}/{name}");
        let database = Self { server, name, url };
        database.on_server(&format!("CREATE DATABASE {}", database.name)).await;
        Some(database)
    }

    async fn on_server(&self, sql: &str) {
        let session = Session::open(&self.server, CALL_LIMIT).await.expect("connect");
        session.client.batch_execute(sql).await.expect(sql);
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(Postgres::connect(&self.url).await.expect("connect"))
    }

    async fn remove(self) {
        self.on_server(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

#[tokio::test]
async fn many_servers_may_start_at_once() {
    let Some(database) = Database::create().await else { return };
    let stores = futures::future::join_all((0..4).map(|_| database.store())).await;
    let mut epochs: Vec<u64> = Vec::new();
    for store in &stores {
        epochs.push(store.lead().await.expect("lead").epoch);
    }
    assert_eq!(epochs, [1, 2, 3, 4]);
    database.remove().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let Some(database) = Database::create().await else { return };
    drop(database.store().await);
    let session =
        Session::open(&configure(&database.url, CALL_LIMIT).expect("url"), CALL_LIMIT).await.expect("connect");
    session.client.batch_execute("INSERT INTO schema_migrations VALUES (9999, 'future')").await.expect("insert");
    assert!(matches!(Postgres::connect(&database.url).await, Err(StoreError::Open(why)) if why.contains("9999")));
    database.remove().await;
}

#[tokio::test]
async fn an_old_database_comes_up() {
    let Some(database) = Database::create().await else { return };
    let session =
        Session::open(&configure(&database.url, CALL_LIMIT).expect("url"), CALL_LIMIT).await.expect("connect");
    let old = &session.client;
    old.batch_execute("CREATE TABLE schema_migrations (version bigint PRIMARY KEY, name text NOT NULL)")
        .await
        .expect("table");
    for step in &migration::ALL[..2] {
        old.batch_execute(step.postgres).await.expect(step.name);
        let sql = "INSERT INTO schema_migrations VALUES ($1, $2)";
        old.execute(sql, &[&step.version, &step.name]).await.expect("version");
    }
    for row in conformance::old_rows() {
        let (job, id, class) = (row.columns(), row.job.id.0, row.job.class().0);
        let sql = "INSERT INTO jobs VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let key: [&(dyn ToSql + Sync); 5] = [&id, &job.state, &job.queue, &class, &job.priority];
        let rest: [&(dyn ToSql + Sync); 4] = [&job.seq, &job.due_at, &job.created_at, &row.record];
        old.execute(sql, &[&key[..], &rest].concat()).await.expect("row");
        old.execute("INSERT INTO job_specs VALUES ($1, '')", &[&id]).await.expect("what the job is");
    }
    let placements = conformance::old_placements();
    old.execute("INSERT INTO placements VALUES (1, 5, $1)", &[&placements]).await.expect("placements");
    for _ in 0..2 {
        drop(database.store().await);
    }
    conformance::check_old_database(&database.store().await).await;
    database.remove().await;
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    assert!(matches!(Postgres::connect("not a url").await, Err(StoreError::Open(_))));
    let nobody = Postgres::connect("postgres://nobody@127.0.0.1:1/nothing").await;
    assert!(matches!(nobody, Err(StoreError::Unavailable(_))));
}

/// PostgreSQL takes no NUL in a text, which stands here for any row that it refuses.
#[tokio::test]
async fn a_refused_row_fails_its_commit_whole() {
    let Some(database) = Database::create().await else { return };
    let store = database.store().await;
    let mut leader = Leader::of(&store).await;
    let refused = Job { queue: "\0".into(), ..pending(2) };
    let answer = leader.try_commit(jobs_batch([new(pending(1)), new(refused)]), vec![]).await;
    assert!(matches!(answer, Err(StoreError::Broken(_))), "{answer:?}");
    assert!(store.list(Filter::default(), None, 9).await.expect("list").jobs.is_empty());
    leader.commit(jobs_batch([new(pending(1))]), vec![]).await;
    assert_eq!(store.list(Filter::default(), None, 9).await.expect("list").jobs, [pending(1)]);
    database.remove().await;
}

#[tokio::test]
async fn lost_connections_are_made_again() {
    let Some(database) = Database::create().await else { return };
    let store = database.store().await;
    let mut leader = Leader::of(&store).await;
    leader.commit(jobs_batch([new(pending(1))]), vec![]).await;
    assert_eq!(store.jobs(vec![job_id(1)]).await.expect("jobs").len(), 1);
    let all = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", database.name);
    database.on_server(&all).await;
    eventually(async || leader.try_commit(jobs_batch([new(pending(2))]), vec![]).await).await;
    eventually(async || store.jobs(vec![job_id(2)]).await.map(|found| assert_eq!(found.len(), 1))).await;
    database.remove().await;
}

async fn eventually(mut call: impl AsyncFnMut() -> Result<(), StoreError>) {
    for _ in 0..20 {
        match call().await {
            Ok(()) => return,
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("it stayed away");
}

/// A server that takes connections and says nothing, as a stopped one does.
#[tokio::test]
async fn silence_is_answered_in_bounded_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let url = format!("postgres://nobody@{}/nothing", silent.local_addr().expect("address"));
    let begin = Instant::now();
    assert!(matches!(Postgres::connect_within(&url, SHORT).await, Err(StoreError::Unavailable(_))));
    assert!(begin.elapsed() < 3 * SHORT);
}

/// The same in the middle of a conversation: the commit fails in bounded time, and goes through once the server answers.
#[tokio::test]
async fn a_commit_into_silence_can_be_repeated() {
    let Some(database) = Database::create().await else { return };
    let proxy = Proxy::start(&database).await;
    let store: Arc<dyn Store> = Arc::new(Postgres::connect_within(&proxy.url, SHORT).await.expect("connect"));
    let mut leader = Leader::of(&store).await;
    leader.commit(jobs_batch([new(pending(1))]), vec![]).await;
    proxy.open.send_replace(false);
    let begin = Instant::now();
    let lost = leader.try_commit(jobs_batch([new(pending(2))]), vec![]).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    assert!(begin.elapsed() < 3 * SHORT);
    let read = store.jobs(vec![job_id(1)]).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(begin.elapsed() < 6 * SHORT);
    proxy.open.send_replace(true);
    eventually(async || leader.try_commit(jobs_batch([new(pending(2))]), vec![]).await).await;
    assert_eq!(store.jobs(vec![job_id(1), job_id(2)]).await.expect("jobs").len(), 2);
    database.remove().await;
}

/// Stands between store and server, and can stop passing anything on without closing a connection.
struct Proxy {
    url: String,
    open: tokio::sync::watch::Sender<bool>,
}

impl Proxy {
    async fn start(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let port = listener.local_addr().expect("address").port();
        let server = ("127.0.0.1", database.server.get_ports()[0]);
        let (open, gate) = tokio::sync::watch::channel(true);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(server).await.expect("server");
                tokio::spawn(pass_while_open(near, far, gate.clone()));
            }
        });
        Self { url: format!("postgres://postgres@127.0.0.1:{port}/{}", database.name), open }
    }
}

async fn pass_while_open(mut near: TcpStream, mut far: TcpStream, mut gate: tokio::sync::watch::Receiver<bool>) {
    let mut closing = gate.clone();
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => return,
        _ = async { closing.wait_for(|open| !open).await.map(drop) } => {}
    }
    gate.wait_for(|open| *open).await.map(drop).ok();
}

const ID: &str = "gen_random_uuid()";
const IDS: &str = "ARRAY[gen_random_uuid()]";
const BLOBS: &str = "ARRAY['x'::bytea]";

/// Every statement on a table that grows, values for it, and the indexes that it must go by.
fn statements() -> Vec<(&'static str, String, Vec<&'static str>)> {
    let jobs = format!("({ID}, {ID}, 'q', 1, 2, 10");
    let rows = rows::RowStatements::texts();
    let write = |name: &str| rows[name];
    vec![
        (read::ACTIVE, String::new(), vec!["jobs_state"]),
        (read::LANES, String::new(), vec!["jobs_ready"]),
        (read::READY, "(1, 1::smallint, 1, 10)".into(), vec!["jobs_ready"]),
        (read::DUE, format!("(1, {ID}, 10)"), vec!["jobs_due"]),
        (read::DEPENDENTS, format!("({IDS}, {IDS}, 10)"), vec!["edges_pkey", "jobs_pkey"]),
        (pages::EACH_JOB, format!("{jobs})"), vec!["jobs_pkey"]),
        (pages::OF_STATE, format!("{jobs}, 1::smallint)"), vec!["jobs_state"]),
        (pages::OF_QUEUE, format!("{jobs})"), vec!["job_specs_queue", "jobs_pkey"]),
        (pages::OVER, format!("(4::smallint, {ID}, {ID}, 1, 10)"), vec!["jobs_state"]),
        (pages::AFTER, format!("(5::smallint, {ID}, 10)"), vec!["jobs_state"]),
        (read::JOBS, format!("({IDS})"), vec!["jobs_pkey"]),
        (read::PAYLOADS, format!("({IDS})"), vec!["job_specs_pkey"]),
        (read::RESULTS, format!("({IDS})"), vec!["job_results_pkey"]),
        (read::DATA, format!("({IDS})"), vec!["job_data_pkey"]),
        (read::KEYS, "(ARRAY['k'])".into(), vec!["idempotency_keys_pkey"]),
        (read::COUNTS_OF_QUEUE, "('q')".into(), vec!["counts_pkey"]),
        (read::LOGS, format!("({ID}, {ID}, 1, 10, 10)"), vec!["log_chunks_pkey"]),
        (read::LOG_CHUNK_AT, format!("({ID}, {ID}, 1)"), vec!["log_chunks_pkey"]),
        (read::LOG_TAIL, format!("({ID}, {ID}, 1, 10, 10)"), vec!["log_chunks_pkey"]),
        (read::LOG_ENDS, format!("({IDS}, {IDS})"), vec!["log_chunks_pkey"]),
        (pages::LETTER, format!("({ID})"), vec!["dead_letters_pkey"]),
        (pages::DELIVERY, format!("({ID})"), vec!["deliveries_pkey"]),
        (read::AWAITED, format!("({IDS})"), vec!["edges_pkey", "jobs_pkey"]),
        (pages::LETTERS, format!("(1, {ID}, 1, 'q', 't', 'k', 10)"), vec!["dead_letters_time"]),
        (pages::LETTERS_ALIKE, format!("(1, {ID}, 1, 'q', 't', 'k', 10, 5)"), vec!["dead_letters_alike"]),
        (pages::ALL_LETTERS, String::new(), vec!["dead_letter_total_pkey"]),
        (pages::LARGEST_GROUPS, "(10)".into(), vec!["dead_letter_groups_count", "dead_letters_alike"]),
        (pages::DELIVERIES_DUE, "(1, 10)".into(), vec!["deliveries_due"]),
        (pages::NEXT_DELIVERY, String::new(), vec!["deliveries_due"]),
        (pages::DELIVERIES, format!("({ID}, 10)"), vec!["deliveries_pkey"]),
        (pages::DELIVERIES_OF_STATE, format!("({ID}, 10, 1::smallint)"), vec!["deliveries_state"]),
        (pages::DELIVERIES_OF_JOB, format!("({ID}, 10, {ID}, 1::smallint)"), vec!["deliveries_job"]),
        (pages::JOURNAL, "(1, 10)".into(), vec!["journal_pkey"]),
        (pages::JOURNAL_ENDS, String::new(), vec!["journal_pkey"]),
        (pages::AUDIT, "(1, 10)".into(), vec!["audit_pkey"]),
        (pages::AUDIT_OF_ACTOR, "(1, 10, 'a')".into(), vec!["audit_actor "]),
        (pages::AUDIT_OF_ACTION, "(1, 10, 'a')".into(), vec!["audit_action "]),
        (pages::AUDIT_OF_BOTH, "(1, 10, 'a', 'b')".into(), vec!["audit_actor_action "]),
        (write("drop_counts"), "(ARRAY['q'], ARRAY[1::smallint])".into(), vec!["counts_pkey"]),
        (write("drop_edges"), format!("({IDS}, {IDS})"), vec!["edges_pkey"]),
        (write("drop_letters"), format!("({IDS})"), vec!["dead_letters_pkey", "dead_letter_groups_pkey"]),
        (write("drop_groups"), String::new(), vec!["dead_letter_groups_count"]),
        (write("put_deliveries"), format!("({IDS}, {IDS}, ARRAY[1::smallint], ARRAY[1], {BLOBS})"), vec!["jobs_pkey"]),
        (write("trim_journal"), "(1)".into(), vec!["journal_pkey"]),
        (
            write("forget"),
            format!("({IDS})"),
            vec!["jobs_pkey", "job_specs_pkey", "job_results_pkey", "job_data_pkey", "log_chunks_pkey"],
        ),
        (write("forget"), format!("({IDS})"), vec!["settling_pkey", "idempotency_keys_job", "deliveries_job"]),
        (write("forget_dependents"), format!("({IDS})"), vec!["edges_pkey"]),
    ]
}

#[tokio::test]
async fn no_statement_scans_what_grows() {
    let Some(database) = Database::create().await else { return };
    let store = database.store().await;
    Leader::of(&store).await.commit(jobs_batch((0..200).map(|n| new(pending(n)))), vec![]).await;
    let session =
        Session::open(&configure(&database.url, CALL_LIMIT).expect("url"), CALL_LIMIT).await.expect("connect");
    for (sql, values, indexes) in statements() {
        session.client.batch_execute(&format!("DEALLOCATE ALL; PREPARE it AS {sql}")).await.expect(sql);
        let rows = session.client.query(&format!("EXPLAIN EXECUTE it {values}"), &[]).await.expect(sql);
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(indexes.iter().all(|index| plan.contains(index)), "{sql}\n{plan}");
        assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{sql}\n{plan}");
        // A scan of an index that says nowhere where to begin walks all of it.
        let scans = plan.matches("Index Scan").count() + plan.matches("Index Only Scan").count();
        let ends = plan.matches("Limit").count() + plan.matches("Index Cond").count();
        assert!(ends >= scans, "{sql}\n{plan}");
    }
    database.remove().await;
}
