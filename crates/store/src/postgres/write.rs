//! The one writer. A commit is one round trip, and one more where many new rows are copied.

use super::{
    Session, bounded,
    copy::CopyRows,
    rows::{self, RowStatements},
};
use crate::{
    Aside, Commit, Leadership, StoreError,
    record::{JobColumns, encode, encode_compact, is_terminated, signed, unsigned},
};
use futures::future::{BoxFuture, join_all};
use hodei_core::{
    brain::{Batch, Edge, JobWrite},
    protocol::LogChunk,
    time::Time,
    worker::WorkerRecord,
};
use serde::Serialize;
use std::{ops::Range, sync::Arc, time::Duration};
use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, Statement, error::SqlState, types::ToSql};
use uuid::Uuid;

/// Rows and bytes that one statement carries at most; PostgreSQL takes no message of a gigabyte.
pub const STATEMENT_ROWS: usize = 5_000;
const STATEMENT_BYTES: usize = 16 << 20;
/// From this many new jobs on, their rows are copied: a row costs less so, but a copy takes a round trip more.
const COPIED: usize = 500;

pub struct Writer {
    config: Config,
    limit: Duration,
    /// Connected when it is first needed, and again after every failure.
    session: Mutex<Option<WriterSession>>,
}

impl Writer {
    pub fn new(config: Config, limit: Duration) -> Self {
        Self { config, limit, session: Mutex::new(None) }
    }

    pub async fn lead(&self) -> Result<Leadership, StoreError> {
        let mut slot = self.session.lock().await;
        let session = self.take(&mut slot).await?;
        let leadership = bounded(self.limit, session.lead()).await?;
        *slot = Some(session);
        Ok(leadership)
    }

    pub async fn commit(&self, commit: Arc<Commit>) -> Result<(), StoreError> {
        let mut slot = self.session.lock().await;
        let mut rows = Rows::New;
        loop {
            match self.write(&mut slot, &commit, rows).await? {
                Written::All => return Ok(()),
                Written::Taken => rows = Rows::NewOrTaken,
                Written::NoTurn => return self.explain_no_turn(&mut slot, commit.epoch).await,
            }
        }
    }

    /// A session on which something failed may be in the middle of a transaction or of a copy, so it is dropped.
    async fn write(
        &self,
        slot: &mut Option<WriterSession>,
        commit: &Commit,
        rows: Rows,
    ) -> Result<Written, StoreError> {
        let session = self.take(slot).await?;
        let answer = bounded(self.limit, session.commit(commit, rows)).await;
        if matches!(answer, Ok(Written::All)) {
            *slot = Some(session);
        }
        answer
    }

    /// The commit was made before, which is fine, or another server leads.
    async fn explain_no_turn(&self, slot: &mut Option<WriterSession>, ours: u64) -> Result<(), StoreError> {
        let session = self.take(slot).await?;
        let current = bounded(self.limit, session.epoch()).await?;
        *slot = Some(session);
        if current == ours { Ok(()) } else { Err(StoreError::Deposed { ours, current }) }
    }

    /// The session leaves its place while it is used: if the caller stops waiting, it is dropped with the call.
    async fn take(&self, slot: &mut Option<WriterSession>) -> Result<WriterSession, StoreError> {
        match slot.take() {
            Some(session) if !session.session.client.is_closed() => Ok(session),
            _ => bounded(self.limit, WriterSession::open(&self.config, self.limit)).await,
        }
    }
}

/// What is thought of the rows of jobs that are new: that they are.
#[derive(Clone, Copy)]
enum Rows {
    New,
    /// Some are there already, which is a defect. They stay as they are, and the others are written.
    NewOrTaken,
}

enum Written {
    All,
    /// Nothing: a row that should have been new was there.
    Taken,
    /// Nothing: another leads, or it was written before.
    NoTurn,
}

struct WriterSession {
    session: Session,
    statements: Statements,
    rows: RowStatements,
}

impl WriterSession {
    async fn open(config: &Config, limit: Duration) -> Result<Self, StoreError> {
        let session = Session::open(config, limit).await?;
        let statements = Statements::prepare(&session.client).await?;
        let rows = RowStatements::prepare(&session.client).await?;
        Ok(Self { session, statements, rows })
    }

    async fn lead(&self) -> Result<Leadership, StoreError> {
        let sql = "UPDATE leadership SET epoch = epoch + 1, batch = 0 RETURNING epoch, last_time, parked_until";
        let row = self.session.client.query_one(sql, &[]).await?;
        Ok(Leadership {
            epoch: unsigned(row.try_get(0)?),
            last: Time(row.try_get(1)?),
            parked_until: row.try_get::<_, Option<i64>>(2)?.map(Time),
        })
    }

    /// All statements are sent before the first is answered. One that fails makes the others fail, and the final
    /// COMMIT a rollback.
    async fn commit(&self, commit: &Commit, new: Rows) -> Result<Written, StoreError> {
        let blobs = CommitBlobs::encode(commit)?;
        let rows = CommitRows::new(commit, &blobs);
        let mut pipeline = Pipeline { client: &self.session.client, calls: Vec::new() };
        pipeline.say("BEGIN");
        self.take_turn(&mut pipeline, commit.epoch, &commit.batch);
        self.send_new(&mut pipeline, &rows, new)?;
        self.send_known(&mut pipeline, &rows);
        rows::send(&mut pipeline, &self.rows, commit)?;
        pipeline.say("COMMIT");
        let wrote = match (pipeline.finish().await, new) {
            (Ok(wrote), _) => wrote,
            (Err(error), _) if error.code() == Some(&NO_TURN) => return Ok(Written::NoTurn),
            (Err(error), Rows::New) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(Written::Taken),
            (Err(error), _) => return Err(error.into()),
        };
        if wrote.keys != commit.batch.keys.len() as u64 {
            tracing::error!("the idempotency keys of some new jobs are taken; they stay with the first");
        }
        if wrote.new_jobs != rows.new_jobs.ids.len() as u64 || wrote.known_jobs != rows.known_jobs.ids.len() as u64 {
            self.report_odd_rows(&rows.new_jobs).await;
            self.report_odd_rows(&rows.known_jobs).await;
        }
        Ok(Written::All)
    }

    /// Locks the leadership row, checks that the leader of this commit still leads and notes the commit's number, all
    /// in one statement: who takes the lead meanwhile waits for this commit to end, and so does a repeat of it.
    fn take_turn<'a>(&'a self, pipeline: &mut Pipeline<'a>, epoch: u64, batch: &Batch) {
        let parked_until = batch.parked_until.map(|time| time.0);
        let turn: Params = vec![
            Box::new(signed(epoch)),
            Box::new(signed(batch.number)),
            Box::new(batch.now.0),
            Box::new(parked_until),
        ];
        pipeline.send(Table::Other, &self.statements.take_turn, turn);
    }

    async fn epoch(&self) -> Result<u64, StoreError> {
        let row = self.session.client.query_one("SELECT epoch FROM leadership", &[]).await?;
        Ok(unsigned(row.try_get(0)?))
    }

    fn send_new<'a>(
        &'a self,
        pipeline: &mut Pipeline<'a>,
        rows: &'a CommitRows<'a>,
        new: Rows,
    ) -> Result<(), StoreError> {
        self.send_edges(pipeline, rows.edges, new)?;
        let (statements, jobs, specs) = (&self.statements, &rows.new_jobs, &rows.specs);
        let (insert_jobs, insert_specs) = match new {
            Rows::New if jobs.ids.len() >= COPIED => {
                pipeline.copy(Table::NewJobs, &statements.copy_jobs, jobs.copied()?);
                pipeline.copy(Table::Other, &statements.copy_specs, jobs.copied_specs(&specs.records)?);
                return Ok(());
            }
            Rows::New => (&statements.insert_jobs, &statements.insert_specs),
            Rows::NewOrTaken => (&statements.try_jobs, &statements.try_specs),
        };
        for piece in pieces(&jobs.records) {
            pipeline.send(Table::NewJobs, insert_jobs, jobs.piece(piece));
        }
        for piece in pieces(&specs.records) {
            let mut params = specs.piece(piece.clone());
            params.push(Box::new(&jobs.queues[piece]));
            pipeline.send(Table::Other, insert_specs, params);
        }
        Ok(())
    }

    /// An edge is as new as the job that waits.
    fn send_edges<'a>(&'a self, pipeline: &mut Pipeline<'a>, edges: &[Edge], new: Rows) -> Result<(), StoreError> {
        let statements = &self.statements;
        if matches!(new, Rows::New) && edges.len() >= COPIED {
            let mut copied = CopyRows::new();
            for Edge { dependency, dependent } in edges {
                copied.row(2);
                copied.field(dependency.as_bytes())?;
                copied.field(dependent.as_bytes())?;
            }
            pipeline.copy(Table::Other, &statements.copy_edges, copied);
            return Ok(());
        }
        for edges in edges.chunks(STATEMENT_ROWS) {
            let dependencies: Vec<Uuid> = edges.iter().map(|edge| edge.dependency.0).collect();
            let dependents: Vec<Uuid> = edges.iter().map(|edge| edge.dependent.0).collect();
            let params: Params = vec![Box::new(dependencies), Box::new(dependents)];
            pipeline.send(Table::Other, &statements.insert_edges, params);
        }
        Ok(())
    }

    fn send_known<'a>(&'a self, pipeline: &mut Pipeline<'a>, rows: &'a CommitRows<'a>) {
        let statements = &self.statements;
        for piece in pieces(&rows.known_jobs.records) {
            pipeline.send(Table::KnownJobs, &statements.update_jobs, rows.known_jobs.changing(piece));
        }
        if let Some(record) = &rows.placements {
            pipeline.send(
                Table::Other,
                &statements.place,
                vec![Box::new(rows.epoch), Box::new(rows.batch), Box::new(record)],
            );
        }
        if !rows.settled.0.is_empty() {
            let (epochs, batches) = (&rows.settled.0, &rows.settled.1);
            pipeline.send(Table::Other, &statements.settle, vec![Box::new(epochs), Box::new(batches)]);
        }
        pipeline.send_blobs(&statements.put_results, &rows.results);
        pipeline.send_blobs(&statements.put_tokens, &rows.tokens);
        for piece in pieces(&rows.workers.blobs.records) {
            pipeline.send(Table::Other, &statements.put_workers, rows.workers.piece(piece));
        }
        if !rows.dropped_tokens.is_empty() {
            pipeline.send(Table::Other, &statements.drop_tokens, vec![Box::new(&rows.dropped_tokens)]);
        }
        for piece in pieces(&rows.logs.data) {
            pipeline.send(Table::Other, &statements.insert_logs, rows.logs.piece(piece));
        }
    }

    /// Assertions that failed. The other rows of the commit are right, so they were kept.
    async fn report_odd_rows(&self, rows: &JobRows<'_>) {
        match self.session.client.query(&self.statements.odd_rows, &[&rows.ids, &rows.records]).await {
            Ok(odd) => odd.iter().filter_map(|row| row.try_get::<_, Uuid>(0).ok()).for_each(|id| {
                tracing::error!(job = %id, "a new job has a row already or a known one has none; its write was left out");
            }),
            Err(error) => tracing::error!(%error, "the writes of some jobs were left out"),
        }
    }
}

struct Statements {
    take_turn: Statement,
    insert_jobs: Statement,
    insert_specs: Statement,
    copy_jobs: Statement,
    copy_specs: Statement,
    copy_edges: Statement,
    insert_edges: Statement,
    try_jobs: Statement,
    try_specs: Statement,
    update_jobs: Statement,
    odd_rows: Statement,
    put_results: Statement,
    place: Statement,
    settle: Statement,
    put_workers: Statement,
    put_tokens: Statement,
    drop_tokens: Statement,
    insert_logs: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Self, StoreError> {
        Ok(Self {
            take_turn: client.prepare(TAKE_TURN).await?,
            insert_jobs: client.prepare(INSERT_JOBS).await?,
            insert_specs: client.prepare(INSERT_SPECS).await?,
            copy_jobs: client.prepare(COPY_JOBS).await?,
            copy_specs: client.prepare(COPY_SPECS).await?,
            copy_edges: client.prepare(COPY_EDGES).await?,
            insert_edges: client.prepare(INSERT_EDGES).await?,
            try_jobs: client.prepare(&format!("{INSERT_JOBS} ON CONFLICT DO NOTHING")).await?,
            try_specs: client.prepare(&format!("{INSERT_SPECS} ON CONFLICT DO NOTHING")).await?,
            update_jobs: client.prepare(UPDATE_JOBS).await?,
            odd_rows: client.prepare(ODD_ROWS).await?,
            put_results: client.prepare(PUT_RESULTS).await?,
            place: client.prepare(PLACE).await?,
            settle: client.prepare(SETTLE).await?,
            put_workers: client.prepare(PUT_WORKERS).await?,
            put_tokens: client.prepare(PUT_TOKENS).await?,
            drop_tokens: client.prepare(DROP_TOKENS).await?,
            insert_logs: client.prepare(INSERT_LOGS).await?,
        })
    }
}

// The statements that follow are on their way already, so one that finds no row must fail for them to come to nothing.
const TAKE_TURN: &str = "
    WITH turn AS (
        UPDATE leadership
        SET batch = $2, last_time = greatest(last_time, $3), parked_until = coalesce($4, parked_until)
        WHERE epoch = $1 AND batch < $2
        RETURNING 1
    ) SELECT 1 / count(*) FROM turn";
/// How that statement fails, and no other.
const NO_TURN: SqlState = SqlState::DIVISION_BY_ZERO;
const INSERT_JOBS: &str = "
    INSERT INTO jobs (id, state, queue, class, priority, seq, due_at, record, created_at)
    SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::bigint[], $5::smallint[], $6::bigint[],
                         $7::bigint[], $8::bytea[], $9::bigint[])";
const INSERT_SPECS: &str = "
    INSERT INTO job_specs (id, spec, queue) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::text[])";
const COPY_JOBS: &str = "
    COPY jobs (id, state, queue, class, priority, seq, due_at, record, created_at) FROM STDIN (FORMAT binary)";
const COPY_SPECS: &str = "COPY job_specs (id, spec, queue) FROM STDIN (FORMAT binary)";
const COPY_EDGES: &str = "COPY edges (dependency, dependent) FROM STDIN (FORMAT binary)";
const INSERT_EDGES: &str = "
    INSERT INTO edges (dependency, dependent) SELECT * FROM unnest($1::uuid[], $2::uuid[]) ON CONFLICT DO NOTHING";
// What a job is never changes; where it stands does.
const UPDATE_JOBS: &str = "
    UPDATE jobs
    SET state = w.state, seq = w.seq, due_at = w.due_at, record = w.record
    FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::bigint[], $5::bytea[])
        AS w (id, state, seq, due_at, record)
    WHERE jobs.id = w.id";
const PLACE: &str = "INSERT INTO placements (epoch, batch, record) VALUES ($1, $2, $3)";
const SETTLE: &str = "
    DELETE FROM placements USING unnest($1::bigint[], $2::bigint[]) AS s (epoch, batch)
    WHERE placements.epoch = s.epoch AND placements.batch = s.batch";
const ODD_ROWS: &str = "
    SELECT w.id FROM unnest($1::uuid[], $2::bytea[]) AS w (id, record) LEFT JOIN jobs ON jobs.id = w.id
    WHERE jobs.record IS DISTINCT FROM w.record";
const PUT_RESULTS: &str = "
    INSERT INTO job_results (id, result) SELECT * FROM unnest($1::uuid[], $2::bytea[])
    ON CONFLICT (id) DO UPDATE SET result = excluded.result";
const PUT_WORKERS: &str = "
    INSERT INTO workers (id, record, terminated) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::boolean[])
    ON CONFLICT (id) DO UPDATE SET terminated = excluded.terminated, record = excluded.record";
const PUT_TOKENS: &str = "
    INSERT INTO worker_tokens (hash, record) SELECT * FROM unnest($1::bytea[], $2::bytea[])
    ON CONFLICT (hash) DO UPDATE SET record = excluded.record";
const DROP_TOKENS: &str = "DELETE FROM worker_tokens WHERE hash = ANY ($1::bytea[])";
const INSERT_LOGS: &str = "
    INSERT INTO log_chunks (job_id, execution_id, first, count, data)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bytea[])
    ON CONFLICT DO NOTHING";

pub type Params<'a> = Vec<Box<dyn ToSql + Sync + Send + 'a>>;

/// Statements in the order in which they are sent.
pub struct Pipeline<'a> {
    client: &'a Client,
    calls: Vec<BoxFuture<'a, Result<(Table, u64), tokio_postgres::Error>>>,
}

/// What a statement writes, as far as its rows are counted.
#[derive(Clone, Copy)]
pub enum Table {
    NewJobs,
    KnownJobs,
    Keys,
    Other,
}

#[derive(Default)]
struct Wrote {
    new_jobs: u64,
    known_jobs: u64,
    keys: u64,
}

impl<'a> Pipeline<'a> {
    fn say(&mut self, sql: &'static str) {
        let client = self.client;
        self.calls.push(Box::pin(async move { client.batch_execute(sql).await.map(|()| (Table::Other, 0)) }));
    }

    pub fn send(&mut self, table: Table, statement: &'a Statement, params: Params<'a>) {
        let client = self.client;
        self.calls.push(Box::pin(async move { Ok((table, client.execute_raw(statement, params).await?)) }));
    }

    fn copy(&mut self, table: Table, statement: &'a Statement, rows: CopyRows) {
        let client = self.client;
        self.calls.push(Box::pin(async move { Ok((table, rows.send(client, statement).await?)) }));
    }

    fn send_blobs<K: ToSql + Sync + Send>(&mut self, statement: &'a Statement, rows: &'a BlobRows<'a, K>) {
        for piece in pieces(&rows.records) {
            self.send(Table::Other, statement, rows.piece(piece));
        }
    }

    /// Each call is sent when it is first polled, so they go out in order.
    async fn finish(self) -> Result<Wrote, tokio_postgres::Error> {
        let mut wrote = Wrote::default();
        for answer in join_all(self.calls).await {
            match answer? {
                (Table::NewJobs, rows) => wrote.new_jobs += rows,
                (Table::KnownJobs, rows) => wrote.known_jobs += rows,
                (Table::Keys, rows) => wrote.keys += rows,
                (Table::Other, _) => {}
            }
        }
        Ok(wrote)
    }
}

/// Writes what a batch has besides jobs, in the transaction that is under way.
pub async fn add(client: &Client, statements: &RowStatements, batch: Batch) -> Result<(), StoreError> {
    let commit = Commit { epoch: 0, batch, logs: Vec::new(), aside: Aside::default() };
    let mut pipeline = Pipeline { client, calls: Vec::new() };
    rows::send(&mut pipeline, statements, &commit)?;
    pipeline.finish().await?;
    Ok(())
}

/// The rows of one statement: not too many, and not too many bytes unless a single row has them.
pub fn pieces<'a>(blobs: &'a [&[u8]]) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |blob: &&&[u8]| {
            bytes += blob.len();
            bytes <= STATEMENT_BYTES
        };
        let count = blobs.get(start..)?.iter().take(STATEMENT_ROWS).take_while(fits).count().max(1);
        let end = (start + count).min(blobs.len());
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Everything of a commit that has to be encoded.
struct CommitBlobs {
    new_jobs: Blobs,
    known_jobs: Blobs,
    placements: Vec<u8>,
    workers: Blobs,
    tokens: Blobs,
}

impl CommitBlobs {
    fn encode(commit: &Commit) -> Result<Self, StoreError> {
        let batch = &commit.batch;
        let mut placements = Vec::new();
        encode_compact(&batch.placements, &mut placements)?;
        Ok(Self {
            placements,
            new_jobs: Blobs::of(new_jobs(batch).map(|write| &write.job), encode_compact)?,
            known_jobs: Blobs::of(known_jobs(batch).map(|write| &write.job), encode_compact)?,
            workers: Blobs::of(&batch.workers, encode)?,
            tokens: Blobs::of(&batch.tokens, encode)?,
        })
    }
}

fn new_jobs(batch: &Batch) -> impl Iterator<Item = &JobWrite> {
    batch.jobs.iter().filter(|write| write.payload.is_some())
}

fn known_jobs(batch: &Batch) -> impl Iterator<Item = &JobWrite> {
    batch.jobs.iter().filter(|write| write.payload.is_none())
}

/// Many records in one allocation.
#[derive(Default)]
struct Blobs {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Blobs {
    fn of<'v, T: Serialize + 'v>(
        values: impl IntoIterator<Item = &'v T>,
        encode: impl Fn(&T, &mut Vec<u8>) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        let mut blobs = Self::default();
        for value in values {
            encode(value, &mut blobs.bytes)?;
            blobs.ends.push(blobs.bytes.len());
        }
        Ok(blobs)
    }

    fn slices(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect()
    }
}

/// A commit as columns.
struct CommitRows<'a> {
    epoch: i64,
    batch: i64,
    placements: Option<&'a [u8]>,
    /// Epochs and numbers of batches.
    settled: (Vec<i64>, Vec<i64>),
    new_jobs: JobRows<'a>,
    edges: &'a [Edge],
    known_jobs: JobRows<'a>,
    /// Those of the new jobs, in the same order.
    specs: BlobRows<'a, Uuid>,
    results: BlobRows<'a, Uuid>,
    tokens: BlobRows<'a, &'a [u8]>,
    workers: WorkerRows<'a>,
    dropped_tokens: Vec<&'a [u8]>,
    logs: LogRows<'a>,
}

impl<'a> CommitRows<'a> {
    fn new(commit: &'a Commit, blobs: &'a CommitBlobs) -> Self {
        let batch = &commit.batch;
        let results = batch.jobs.iter().filter_map(|write| Some((write.job.id.0, write.result.as_deref()?)));
        let (result_ids, results) = results.unzip();
        let settled = batch.settled.iter().map(|id| (signed(id.epoch), signed(id.number)));
        Self {
            epoch: signed(commit.epoch),
            batch: signed(batch.number),
            placements: (!batch.placements.is_empty()).then_some(&blobs.placements[..]),
            settled: settled.unzip(),
            new_jobs: JobRows {
                classes: new_jobs(batch).map(|write| write.job.class().0).collect(),
                ..JobRows::new(new_jobs(batch), &blobs.new_jobs)
            },
            edges: &batch.edges,
            known_jobs: JobRows::new(known_jobs(batch), &blobs.known_jobs),
            specs: BlobRows {
                keys: new_jobs(batch).map(|write| write.job.id.0).collect(),
                records: new_jobs(batch).filter_map(|write| write.payload.as_deref()).collect(),
            },
            results: BlobRows { keys: result_ids, records: results },
            tokens: BlobRows {
                keys: batch.tokens.iter().map(|token| &token.hash.0[..]).collect(),
                records: blobs.tokens.slices(),
            },
            workers: WorkerRows::new(&batch.workers, &blobs.workers),
            dropped_tokens: batch.dropped_tokens.iter().map(|hash| &hash.0[..]).collect(),
            logs: LogRows::new(&commit.logs),
        }
    }
}

#[derive(Default)]
struct JobRows<'a> {
    ids: Vec<Uuid>,
    states: Vec<i16>,
    queues: Vec<&'a str>,
    /// Of new ones: it never changes.
    classes: Vec<i64>,
    priorities: Vec<i16>,
    seqs: Vec<i64>,
    due_ats: Vec<Option<i64>>,
    records: Vec<&'a [u8]>,
    created_ats: Vec<i64>,
}

impl<'a> JobRows<'a> {
    fn new(writes: impl Iterator<Item = &'a JobWrite>, records: &'a Blobs) -> Self {
        let mut rows = Self { records: records.slices(), ..Self::default() };
        for write in writes {
            let job = JobColumns::of(&write.job);
            rows.ids.push(Uuid::from_bytes(*job.id));
            rows.states.push(job.state);
            rows.queues.push(job.queue);
            rows.priorities.push(job.priority);
            rows.seqs.push(job.seq);
            rows.due_ats.push(job.due_at);
            rows.created_ats.push(job.created_at);
        }
        rows
    }

    fn piece(&self, piece: Range<usize>) -> Params<'_> {
        vec![
            Box::new(&self.ids[piece.clone()]),
            Box::new(&self.states[piece.clone()]),
            Box::new(&self.queues[piece.clone()]),
            Box::new(&self.classes[piece.clone()]),
            Box::new(&self.priorities[piece.clone()]),
            Box::new(&self.seqs[piece.clone()]),
            Box::new(&self.due_ats[piece.clone()]),
            Box::new(&self.records[piece.clone()]),
            Box::new(&self.created_ats[piece]),
        ]
    }

    fn copied(&self) -> Result<CopyRows, StoreError> {
        let mut rows = CopyRows::new();
        for (at, id) in self.ids.iter().enumerate() {
            rows.row(9);
            rows.field(id.as_bytes())?;
            rows.field(&self.states[at].to_be_bytes())?;
            rows.field(self.queues[at].as_bytes())?;
            rows.field(&self.classes[at].to_be_bytes())?;
            rows.field(&self.priorities[at].to_be_bytes())?;
            rows.field(&self.seqs[at].to_be_bytes())?;
            match self.due_ats[at] {
                Some(due_at) => rows.field(&due_at.to_be_bytes())?,
                None => rows.null(),
            }
            rows.field(self.records[at])?;
            rows.field(&self.created_ats[at].to_be_bytes())?;
        }
        Ok(rows)
    }

    /// The rows beside these that say what the jobs are.
    fn copied_specs(&self, specs: &[&[u8]]) -> Result<CopyRows, StoreError> {
        let mut rows = CopyRows::new();
        for ((id, spec), queue) in self.ids.iter().zip(specs).zip(&self.queues) {
            rows.row(3);
            rows.field(id.as_bytes())?;
            rows.field(spec)?;
            rows.field(queue.as_bytes())?;
        }
        Ok(rows)
    }

    fn changing(&self, piece: Range<usize>) -> Params<'_> {
        vec![
            Box::new(&self.ids[piece.clone()]),
            Box::new(&self.states[piece.clone()]),
            Box::new(&self.seqs[piece.clone()]),
            Box::new(&self.due_ats[piece.clone()]),
            Box::new(&self.records[piece]),
        ]
    }
}

/// Rows of a key and a record.
struct BlobRows<'a, K> {
    keys: Vec<K>,
    records: Vec<&'a [u8]>,
}

impl<K: ToSql + Sync + Send> BlobRows<'_, K> {
    fn piece(&self, piece: Range<usize>) -> Params<'_> {
        vec![Box::new(&self.keys[piece.clone()]), Box::new(&self.records[piece])]
    }
}

struct WorkerRows<'a> {
    blobs: BlobRows<'a, Uuid>,
    terminated: Vec<bool>,
}

impl<'a> WorkerRows<'a> {
    fn new(workers: &[WorkerRecord], records: &'a Blobs) -> Self {
        let keys = workers.iter().map(|worker| worker.id.0).collect();
        Self {
            blobs: BlobRows { keys, records: records.slices() },
            terminated: workers.iter().map(is_terminated).collect(),
        }
    }

    fn piece(&self, piece: Range<usize>) -> Params<'_> {
        let mut params = self.blobs.piece(piece.clone());
        params.push(Box::new(&self.terminated[piece]));
        params
    }
}

struct LogRows<'a> {
    jobs: Vec<Uuid>,
    executions: Vec<Uuid>,
    firsts: Vec<i64>,
    counts: Vec<i64>,
    data: Vec<&'a [u8]>,
}

impl<'a> LogRows<'a> {
    fn new(chunks: &'a [LogChunk]) -> Self {
        Self {
            jobs: chunks.iter().map(|chunk| chunk.job.0).collect(),
            executions: chunks.iter().map(|chunk| chunk.execution.0).collect(),
            firsts: chunks.iter().map(|chunk| signed(chunk.first)).collect(),
            counts: chunks.iter().map(|chunk| chunk.count.into()).collect(),
            data: chunks.iter().map(|chunk| &*chunk.data).collect(),
        }
    }

    fn piece(&self, piece: Range<usize>) -> Params<'_> {
        vec![
            Box::new(&self.jobs[piece.clone()]),
            Box::new(&self.executions[piece.clone()]),
            Box::new(&self.firsts[piece.clone()]),
            Box::new(&self.counts[piece.clone()]),
            Box::new(&self.data[piece]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_row_once() {
        let big = vec![0; STATEMENT_BYTES + 1];
        let small = vec![0; 10];
        let blobs: Vec<&[u8]> = [&small[..], &big, &big, &small].into_iter().chain(vec![&small[..]; 12_000]).collect();
        let pieces: Vec<_> = pieces(&blobs).collect();
        assert_eq!(pieces, [0..1, 1..2, 2..3, 3..5_003, 5_003..10_003, 10_003..12_004]);
        assert_eq!(super::pieces(&[]).count(), 0);
    }
}
