//! What a commit writes besides jobs, placements, workers and logs. Most commits have nothing of it but a line of the
//! journal and a few counts.

use super::write::{Params, Pipeline, STATEMENT_ROWS, Table, pieces};
use crate::{
    Aside, Commit, StoreError,
    record::{delivery_kind, delivery_number, encode, encode_compact, signed, state_number},
};
use hodei_core::{
    brain::{Batch, Edge, JobWrite, ScheduleWrite},
    dead_letter::DeadLetter,
    id::JobId,
    webhook::Delivery,
};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

/// Declares the statements with their names, so that all are prepared at once.
macro_rules! statements {
    ($($name:ident: $sql:expr;)+) => {
        pub struct RowStatements {
            $($name: Statement,)+
        }

        impl RowStatements {
            pub async fn prepare(client: &Client) -> Result<Self, StoreError> {
                let ($($name,)+) = futures::try_join!($(client.prepare($sql),)+)?;
                Ok(Self { $($name,)+ })
            }

            /// Their texts, for tests of their plans.
            #[cfg(test)]
            pub fn texts() -> BTreeMap<&'static str, &'static str> {
                [$((stringify!($name), $sql),)+].into()
            }
        }
    };
}

statements! {
    // Each part replaces only itself.
    put_data: "
        INSERT INTO job_data (id, data, input) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[])
        ON CONFLICT (id) DO UPDATE
        SET data = coalesce(excluded.data, job_data.data), input = coalesce(excluded.input, job_data.input)";
    drop_edges: "
        DELETE FROM edges USING unnest($1::uuid[], $2::uuid[]) AS gone (dependency, dependent)
        WHERE edges.dependency = gone.dependency AND edges.dependent = gone.dependent";
    put_settling: "
        INSERT INTO settling (job, told) SELECT * FROM unnest($1::uuid[], $2::uuid[])
        ON CONFLICT (job) DO UPDATE SET told = excluded.told";
    drop_settling: "DELETE FROM settling WHERE job = ANY ($1::uuid[])";
    insert_keys: "
        INSERT INTO idempotency_keys (key, job) SELECT * FROM unnest($1::text[], $2::uuid[]) ON CONFLICT DO NOTHING";
    put_queues: "
        INSERT INTO queues (name, record) SELECT * FROM unnest($1::text[], $2::bytea[])
        ON CONFLICT (name) DO UPDATE SET record = excluded.record";
    add_counts: "
        INSERT INTO counts (queue, state, count)
        SELECT queue, state, sum(by)::bigint FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS w (queue, state, by)
        GROUP BY queue, state
        ON CONFLICT (queue, state) DO UPDATE SET count = counts.count + excluded.count";
    drop_counts: "
        DELETE FROM counts USING unnest($1::text[], $2::smallint[]) AS less (queue, state)
        WHERE counts.queue = less.queue AND counts.state = less.state AND counts.count = 0";
    put_schedules: "
        INSERT INTO schedules (id, record, payload) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[])
        ON CONFLICT (id) DO UPDATE SET record = excluded.record, payload = excluded.payload";
    change_schedules: "
        UPDATE schedules SET record = w.record FROM unnest($1::uuid[], $2::bytea[]) AS w (id, record)
        WHERE schedules.id = w.id";
    drop_schedules: "DELETE FROM schedules WHERE id = ANY ($1::uuid[])";
    put_providers: "
        INSERT INTO providers (name, record) SELECT * FROM unnest($1::text[], $2::bytea[])
        ON CONFLICT (name) DO UPDATE SET record = excluded.record";
    drop_providers: "DELETE FROM providers WHERE name = ANY ($1::text[])";
    put_templates: "
        INSERT INTO worker_templates (name, record) SELECT * FROM unnest($1::text[], $2::bytea[])
        ON CONFLICT (name) DO UPDATE SET record = excluded.record";
    drop_templates: "DELETE FROM worker_templates WHERE name = ANY ($1::text[])";
    put_scheduler: "
        INSERT INTO scheduler (one, record) VALUES (true, $1) ON CONFLICT (one) DO UPDATE SET record = excluded.record";
    drop_letters: "
        WITH gone AS (DELETE FROM dead_letters WHERE job = ANY ($1::uuid[]) RETURNING fingerprint),
             less AS (SELECT fingerprint, count(*) AS count FROM gone GROUP BY fingerprint),
             groups AS (
                 UPDATE dead_letter_groups SET count = dead_letter_groups.count - less.count
                 FROM less WHERE dead_letter_groups.fingerprint = less.fingerprint
             )
        UPDATE dead_letter_total SET count = count - (SELECT count(*) FROM gone) WHERE one";
    drop_groups: "DELETE FROM dead_letter_groups WHERE count <= 0";
    insert_letters: "
        WITH new AS (
            INSERT INTO dead_letters (job, failed_at, fingerprint, queue, task_type, kind, record)
            SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bytea[])
            ON CONFLICT DO NOTHING RETURNING fingerprint
        ), groups AS (
            INSERT INTO dead_letter_groups (fingerprint, count) SELECT fingerprint, count(*) FROM new GROUP BY fingerprint
            ON CONFLICT (fingerprint) DO UPDATE SET count = dead_letter_groups.count + excluded.count
        )
        UPDATE dead_letter_total SET count = count + (SELECT count(*) FROM new) WHERE one";
    // A try may end after its job was forgotten: nothing of it comes back.
    put_deliveries: "
        INSERT INTO deliveries (id, job, state, next_at, record)
        SELECT w.* FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::bigint[], $5::bytea[])
            AS w (id, job, state, next_at, record)
        CROSS JOIN LATERAL (SELECT 1 FROM jobs WHERE jobs.id = w.job OFFSET 0) AS there
        ON CONFLICT (id) DO UPDATE
        SET state = excluded.state, next_at = excluded.next_at, record = excluded.record";
    insert_journal: "INSERT INTO journal (id, record) VALUES ($1, $2)";
    trim_journal: "DELETE FROM journal WHERE id < $1";
    put_api_tokens: "
        INSERT INTO api_tokens (id, record) SELECT * FROM unnest($1::uuid[], $2::bytea[])
        ON CONFLICT (id) DO UPDATE SET record = excluded.record";
    insert_audit: "
        INSERT INTO audit (actor, action, record) SELECT actor, action, record
        FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS w (actor, action, record, place)
        ORDER BY place";
    forget: "
        WITH specs AS (DELETE FROM job_specs WHERE id = ANY ($1::uuid[])),
             results AS (DELETE FROM job_results WHERE id = ANY ($1::uuid[])),
             data AS (DELETE FROM job_data WHERE id = ANY ($1::uuid[])),
             logs AS (DELETE FROM log_chunks WHERE job_id = ANY ($1::uuid[])),
             marks AS (DELETE FROM settling WHERE job = ANY ($1::uuid[])),
             keys AS (DELETE FROM idempotency_keys WHERE job = ANY ($1::uuid[])),
             owed AS (DELETE FROM deliveries WHERE job = ANY ($1::uuid[]))
        DELETE FROM jobs WHERE id = ANY ($1::uuid[])";
    forget_dependents: "DELETE FROM edges WHERE dependency = ANY ($1::uuid[])";
}

/// After the rows of jobs, to which some of it belongs. What is forgotten goes last, so that nothing of it stays.
pub fn send<'a>(to: &mut Pipeline<'a>, statements: &'a RowStatements, commit: &'a Commit) -> Result<(), StoreError> {
    let mut rows = Rows { to, statements };
    let (batch, aside) = (&commit.batch, &commit.aside);
    rows.data(&batch.jobs);
    rows.links(batch);
    rows.queues(batch)?;
    rows.schedules(batch)?;
    rows.fleet(batch)?;
    rows.letters(batch)?;
    rows.deliveries(&batch.deliveries)?;
    rows.deliveries(&aside.deliveries)?;
    rows.journal(commit)?;
    rows.aside(aside)?;
    rows.forget(&batch.forgotten);
    Ok(())
}

struct Rows<'p, 'a> {
    to: &'p mut Pipeline<'a>,
    statements: &'a RowStatements,
}

impl<'a> Rows<'_, 'a> {
    fn send(&mut self, statement: &'a Statement, params: Params<'a>) {
        self.to.send(Table::Other, statement, params);
    }

    fn data(&mut self, jobs: &'a [JobWrite]) {
        let writes: Vec<_> = jobs.iter().filter(|write| write.data.is_some() || write.input.is_some()).collect();
        let bytes = |part: &'a Option<Arc<[u8]>>| part.as_deref();
        let larger = |write: &&'a JobWrite| {
            let (data, input) = (bytes(&write.data).unwrap_or_default(), bytes(&write.input).unwrap_or_default());
            if data.len() > input.len() { data } else { input }
        };
        let sizes: Vec<&[u8]> = writes.iter().map(larger).collect();
        for piece in pieces(&sizes) {
            let writes = &writes[piece];
            self.send(
                &self.statements.put_data,
                vec![
                    Box::new(column(writes, |write| write.job.id.0)),
                    Box::new(column(writes, |write| bytes(&write.data))),
                    Box::new(column(writes, |write| bytes(&write.input))),
                ],
            );
        }
    }

    /// Who waits for nobody any more, who has been told of which end, and who has which key.
    fn links(&mut self, batch: &'a Batch) {
        let statements = self.statements;
        for edges in batch.dropped_edges.chunks(STATEMENT_ROWS) {
            let dependencies = column(edges, |Edge { dependency, .. }| dependency.0);
            let params: Params<'a> = vec![Box::new(dependencies), Box::new(column(edges, |edge| edge.dependent.0))];
            self.send(&statements.drop_edges, params);
        }
        let marks: BTreeMap<Uuid, _> = batch.settling.iter().map(|mark| (mark.job.0, mark.told)).collect();
        if !marks.is_empty() {
            let told: Vec<Option<Uuid>> = marks.values().map(|told| told.map(|id| id.0)).collect();
            self.send(&statements.put_settling, vec![Box::new(marks.into_keys().collect::<Vec<_>>()), Box::new(told)]);
        }
        if !batch.told.is_empty() {
            self.send(&statements.drop_settling, vec![Box::new(uuids(&batch.told))]);
        }
        for keys in batch.keys.chunks(STATEMENT_ROWS) {
            let jobs = column(keys, |(_, job)| job.0);
            let params: Params<'a> = vec![Box::new(column(keys, |(key, _)| &**key)), Box::new(jobs)];
            self.to.send(Table::Keys, &statements.insert_keys, params);
        }
    }

    fn queues(&mut self, batch: &'a Batch) -> Result<(), StoreError> {
        let statements = self.statements;
        let queues = batch.queues.iter().map(|queue| (&*queue.name, queue));
        self.named(&statements.put_queues, queues.collect())?;
        let counts = &batch.counts;
        if !counts.is_empty() {
            self.send(
                &statements.add_counts,
                vec![
                    Box::new(column(counts, |(queue, _, _)| &**queue)),
                    Box::new(column(counts, |(_, state, _)| state_number(*state))),
                    Box::new(column(counts, |(_, _, by)| *by)),
                ],
            );
        }
        let less: Vec<_> = counts.iter().filter(|(_, _, by)| *by < 0).collect();
        if !less.is_empty() {
            let states = column(&less, |(_, state, _)| state_number(*state));
            let queues = column(&less, |(queue, _, _)| &**queue);
            self.send(&statements.drop_counts, vec![Box::new(queues), Box::new(states)]);
        }
        Ok(())
    }

    fn schedules(&mut self, batch: &'a Batch) -> Result<(), StoreError> {
        let statements = self.statements;
        let mut writes: BTreeMap<Uuid, (&ScheduleWrite, Option<&[u8]>)> = BTreeMap::new();
        for write in &batch.schedules {
            let row = writes.entry(write.record.id.0).or_insert((write, None));
            row.0 = write;
            row.1 = write.payload.as_deref().or(row.1);
        }
        for (id, (write, payload)) in writes {
            let (id, records) = (vec![id], records([&write.record])?);
            match payload {
                Some(payload) => {
                    self.send(&statements.put_schedules, vec![Box::new(id), Box::new(records), Box::new(vec![payload])])
                }
                None => self.send(&statements.change_schedules, vec![Box::new(id), Box::new(records)]),
            }
        }
        if !batch.dropped_schedules.is_empty() {
            let ids = column(&batch.dropped_schedules, |id| id.0);
            self.send(&statements.drop_schedules, vec![Box::new(ids)]);
        }
        Ok(())
    }

    fn fleet(&mut self, batch: &'a Batch) -> Result<(), StoreError> {
        let statements = self.statements;
        let providers = batch.providers.iter().map(|provider| (&*provider.name, provider));
        self.named(&statements.put_providers, providers.collect())?;
        self.drop_named(&statements.drop_providers, &batch.dropped_providers);
        let templates = batch.templates.iter().map(|template| (&*template.name, template));
        self.named(&statements.put_templates, templates.collect())?;
        self.drop_named(&statements.drop_templates, &batch.dropped_templates);
        if let Some(settings) = &batch.scheduler {
            let mut record = Vec::new();
            encode(settings, &mut record)?;
            self.send(&statements.put_scheduler, vec![Box::new(record)]);
        }
        Ok(())
    }

    /// Rows that are a name and a record, one of each name.
    fn named<T: Serialize>(&mut self, put: &'a Statement, rows: BTreeMap<&'a str, &'a T>) -> Result<(), StoreError> {
        if !rows.is_empty() {
            let records = records(rows.values().copied())?;
            self.send(put, vec![Box::new(rows.into_keys().collect::<Vec<_>>()), Box::new(records)]);
        }
        Ok(())
    }

    fn drop_named(&mut self, drop: &'a Statement, names: &'a [Arc<str>]) {
        if !names.is_empty() {
            self.send(drop, vec![Box::new(column(names, |name| &**name))]);
        }
    }

    /// A job can be revived and fail again in one batch, so what goes goes first. A letter takes the place of an older one.
    fn letters(&mut self, batch: &'a Batch) -> Result<(), StoreError> {
        let new: BTreeMap<JobId, &DeadLetter> = batch.dead_letters.iter().map(|letter| (letter.job, letter)).collect();
        let gone = batch.dropped_dead_letters.iter().map(|(job, _)| job);
        let gone: Vec<Uuid> = gone.chain(new.keys()).map(|job| job.0).collect();
        self.drop_letters(gone);
        let new: Vec<&DeadLetter> = new.into_values().collect();
        for letters in new.chunks(STATEMENT_ROWS) {
            let records = records(letters.iter().copied())?;
            self.send(
                &self.statements.insert_letters,
                vec![
                    Box::new(column(letters, |letter| letter.job.0)),
                    Box::new(column(letters, |letter| letter.failed_at.0)),
                    Box::new(column(letters, |letter| letter.fingerprint.0)),
                    Box::new(column(letters, |letter| letter.queue.as_str())),
                    Box::new(column(letters, |letter| letter.task_type.as_deref())),
                    Box::new(column(letters, |letter| letter.kind.name())),
                    Box::new(records),
                ],
            );
        }
        Ok(())
    }

    fn drop_letters(&mut self, jobs: Vec<Uuid>) {
        if !jobs.is_empty() {
            self.send(&self.statements.drop_letters, vec![Box::new(jobs)]);
            self.send(&self.statements.drop_groups, vec![]);
        }
    }

    fn deliveries(&mut self, deliveries: &'a [Delivery]) -> Result<(), StoreError> {
        let last: BTreeMap<Uuid, &Delivery> = deliveries.iter().map(|delivery| (delivery.id.0, delivery)).collect();
        let last: Vec<&Delivery> = last.into_values().collect();
        for rows in last.chunks(STATEMENT_ROWS) {
            let records = records(rows.iter().copied())?;
            self.send(
                &self.statements.put_deliveries,
                vec![
                    Box::new(column(rows, |delivery| delivery.id.0)),
                    Box::new(column(rows, |delivery| delivery.job.0)),
                    Box::new(column(rows, |delivery| delivery_number(delivery_kind(delivery)))),
                    Box::new(column(rows, |delivery| delivery.due().map(|time| time.0))),
                    Box::new(records),
                ],
            );
        }
        Ok(())
    }

    fn journal(&mut self, commit: &'a Commit) -> Result<(), StoreError> {
        if commit.batch.changes.is_empty() {
            return Ok(());
        }
        let mut record = Vec::new();
        encode_compact(&commit.batch.changes, &mut record)?;
        let id = signed(commit.journal_id().0);
        self.send(&self.statements.insert_journal, vec![Box::new(id), Box::new(record)]);
        Ok(())
    }

    fn aside(&mut self, aside: &'a Aside) -> Result<(), StoreError> {
        let statements = self.statements;
        if let Some(from) = aside.journal_from {
            self.send(&statements.trim_journal, vec![Box::new(signed(from.0))]);
        }
        let tokens: BTreeMap<Uuid, _> = aside.api_tokens.iter().map(|token| (token.id.0, token)).collect();
        if !tokens.is_empty() {
            let records = records(tokens.values().copied())?;
            let ids: Vec<Uuid> = tokens.into_keys().collect();
            self.send(&statements.put_api_tokens, vec![Box::new(ids), Box::new(records)]);
        }
        for lines in aside.audit.chunks(STATEMENT_ROWS) {
            self.send(
                &statements.insert_audit,
                vec![
                    Box::new(column(lines, |line| line.actor.as_bytes())),
                    Box::new(column(lines, |line| line.action.as_bytes())),
                    Box::new(records(lines)?),
                ],
            );
        }
        Ok(())
    }

    fn forget(&mut self, jobs: &'a [JobId]) {
        let statements = self.statements;
        for jobs in jobs.chunks(STATEMENT_ROWS) {
            self.drop_letters(uuids(jobs));
            for statement in [&statements.forget, &statements.forget_dependents] {
                self.send(statement, vec![Box::new(uuids(jobs))]);
            }
        }
    }
}

fn column<'r, T, C>(rows: &'r [T], of: impl Fn(&'r T) -> C) -> Vec<C> {
    rows.iter().map(of).collect()
}

fn uuids(ids: &[JobId]) -> Vec<Uuid> {
    column(ids, |id| id.0)
}

fn records<'v, T: Serialize + 'v>(values: impl IntoIterator<Item = &'v T>) -> Result<Vec<Vec<u8>>, StoreError> {
    let record = |value| {
        let mut record = Vec::new();
        encode(value, &mut record).map(|()| record)
    };
    values.into_iter().map(record).collect()
}
