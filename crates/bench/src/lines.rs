//! Lines of logs: printed by a process, taken by the worker, stored by the server, and followed by one reader.

use crate::{cluster::Cluster, record::Figure, workloads::job};
use anyhow::{Context, Result, bail};
use hodei_api::v1;
use std::{
    io::{BufWriter, Write},
    time::Instant,
};

const LINES: usize = 3_000_000;

/// What the job runs: lines of a usual length, as fast as they are taken.
pub fn print(count: Option<&str>) -> Result<()> {
    let count: usize = count.context("how many lines?")?.parse()?;
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    for n in 0..count {
        writeln!(out, "2026-01-01T00:00:00Z INFO request {n} took {} ms, answered with {}", n % 977, 200 + n % 7)?;
    }
    Ok(out.flush()?)
}

pub async fn follow(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    cluster.start_worker(1).await?;
    let program = std::env::current_exe()?;
    let program = program.to_str().context("a path that is not UTF-8")?;
    let spec = job(program, &["--print", &LINES.to_string()]);
    let began = Instant::now();
    let job_id = cluster.jobs().await?.queue_job(v1::QueueJobRequest { job: Some(spec) }).await?.into_inner().job_id;
    let mut logs = cluster.logs().await?;
    let mut stream = logs.subscribe_logs(v1::SubscribeLogsRequest { job_id, tail: None }).await?.into_inner();
    let mut lines = 0;
    while let Some(batch) = stream.message().await? {
        lines += batch.entries.len();
    }
    if lines != LINES {
        bail!("{lines} of {LINES} lines came");
    }
    Ok(figure.with("rate", "lines/s", LINES as f64 / began.elapsed().as_secs_f64()))
}
