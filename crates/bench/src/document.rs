//! Makes `docs/benchmarks.md` and its pictures of a record.

use crate::{
    limits,
    plot::{self, Bar, Class},
    record::{Durability, Figure, Record, Value, Workload},
    report::number,
};
use anyhow::Result;
use std::{fmt::Write, fs, path::Path};

const HODEI: &str = "Hodei";

pub fn write(record: &Record, root: &Path) -> Result<()> {
    let folder = root.join("docs/benchmarks");
    fs::create_dir_all(&folder)?;
    let mut pictures = String::new();
    for workload in Workload::COMPARED {
        let Some(svg) = picture(record, workload) else { continue };
        let name = workload.name();
        fs::write(folder.join(format!("{name}.svg")), svg)?;
        _ = writeln!(pictures, "![{}](benchmarks/{name}.svg)\n", workload.title());
    }
    fs::write(root.join("docs/benchmarks.md"), page(record, &pictures))?;
    Ok(())
}

fn page(record: &Record, pictures: &str) -> String {
    let mut page = String::from("# Benchmarks\n\n");
    page.push_str(&wrap(
        "Hodei beside its peers, all measured in one run of `cargo xtask bench --peers`, which also wrote this page. \
         Machines differ and are noisy; what counts are ratios between figures of the same run. Every figure stands beside \
         what the system promised for it: **synced** means that an accepted job is on the disk before the call returns and \
         survives a power cut, **not synced** that it is written and may be lost, **none** that it is kept in memory.",
    ));
    let runs = record.figures.iter().flat_map(|f| &f.values).map(|v| v.runs.len()).max().unwrap_or(1);
    let how_often = match runs {
        1 => "Each figure is of one run.".to_owned(),
        _ => {
            format!("Each figure is the median of {runs} runs; the lowest and the highest are at the end of the page.")
        }
    };
    _ = writeln!(page, "\nMeasured on {} at commit `{}`. {how_often}\n", record.date, record.commit);
    page.push_str("## Results\n\n");
    page.push_str(&table(record));
    page.push_str(
        "\nBest of each column in bold. Rates are jobs a second; latencies are p50 / p95 / p99 in milliseconds; ",
    );
    page.push_str(
        "processes are jobs a\nsecond, and their share of the spawn loop below; memory is MiB of the system's own ",
    );
    page.push_str("processes, + its database's.\nAn empty cell: the system has no such thing.\n");
    page.push_str(&gaps(record));
    page.push_str(&ratios(record));
    page.push('\n');
    page.push_str(pictures);
    page.push_str(&only_hodei(record));
    page.push_str(&machine(record));
    page.push_str(&settings(record));
    page.push_str(MEANING);
    page.push_str(&spreads(record));
    page
}

const MEANING: &str = "
## What is measured

- **Every system** runs as its users run it: what enqueues and the worker are processes of their own, the database is on the
  same machine, on loopback. Every measurement starts with an empty store. The systems take turns at each workload.
- **Enqueue, 16 single callers**: 16 callers in one process, each enqueuing one job at a time for 4 seconds, and going on when
  its job is acknowledged. They share what the system's library offers for that: with BullMQ a connection to Redis whose commands
  are pipelined, with most others a pool of connections, with Hodei a `Client`, which sends together what was submitted while
  requests were on their way. `a connection each` is Hodei with nothing shared, as if the callers were programs of their own. No system that
  syncs can do more than 16 jobs in the time of one synced write, unless it has several syncs under way at a time.
- **Bulk enqueue**: the best call that a system has for many jobs at once.
- **Drain of no-op jobs**: jobs are enqueued first, then the worker is started. Counted from the start of the first handler
  until the store holds no waiting or active job, so completions that are still buffered count as not done.
- **Idle latency to the handler**: 200 jobs, one at a time after a rest of 10 ms, from before the enqueue call to the first
  line of the handler in the worker's process, by the same clock.
- **Process jobs**: `/bin/true` for each job, its output captured where the system can. Beside it stands the spawn loop: two
  threads that do nothing but `posix_spawn` and wait, which no system can beat. Hodei and HyperQueue are counted from before
  the enqueue call, the others from the first handler.
- **Idle latency to a process's main**: the same as to the handler, where the job is a process.
- **Memory at rest**: resident memory of the system's server and worker, pages that they share counted once, after two quiet
  seconds; the process that enqueues is not counted.

## Notes

- Each peer is set for each workload as suits it best; Hodei runs with one set of defaults.
- What a system does for a job differs. Hodei keeps the result and every line of output; graphile-worker and BullMQ, as set
  here, delete finished jobs; xargs keeps nothing.
- A small machine favours systems that batch: database, worker and enqueuing side share its cores.

## Repeat

```sh
cargo xtask bench --peers            # installs the peers, measures, writes this page and its pictures
cargo xtask bench --peers --runs 5   # the median of five
cargo xtask bench --peers --only drain --peer graphile
cargo xtask bench                    # Hodei and the limits of the machine alone
```

The peers' programs are in `crates/bench/peers`; all figures of the last run are in `target/bench/latest.json`.
";

/// Lines of at most 120 characters.
fn wrap(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 120 {
            _ = writeln!(lines, "{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &line + "\n"
}

fn table(record: &Record) -> String {
    let columns: Vec<Workload> =
        Workload::COMPARED.into_iter().filter(|w| record.figures.iter().any(|f| f.workload == *w)).collect();
    let titles: Vec<&str> = columns.iter().map(|workload| column(*workload)).collect();
    let mut table = format!("| system | durability | {} |\n|---|---|", titles.join(" | "));
    table.push_str(&"---:|".repeat(columns.len()));
    table.push('\n');
    for system in record.systems() {
        let Some(any) = record.figures.iter().find(|f| f.system == system) else { continue };
        if !columns.iter().any(|workload| record.figure(system, *workload).is_some()) {
            continue;
        }
        let cells = columns.iter().map(|workload| {
            let Some(figure) = record.figure(system, *workload) else { return String::new() };
            let text = cell(record, figure);
            if best(record, *workload).is_some_and(|best| best.system == system) { format!("**{text}**") } else { text }
        });
        let cells: Vec<String> = cells.collect();
        _ = writeln!(table, "| {system} {} | {} | {} |", any.version, any.durability.text(), cells.join(" | "));
    }
    table
}

fn column(workload: Workload) -> &'static str {
    match workload {
        Workload::Callers => "16 callers",
        Workload::Bulk => "bulk",
        Workload::Drain => "drain",
        Workload::Latency => "latency, ms",
        Workload::Process => "processes",
        Workload::Start => "process start, ms",
        _ => "memory, MiB",
    }
}

fn cell(record: &Record, figure: &Figure) -> String {
    let of = |name: &str| figure.value(name).map(|value| number(value.median())).unwrap_or_default();
    match figure.workload {
        Workload::Latency | Workload::Start => format!("{} / {} / {}", of("p50"), of("p95"), of("p99")),
        Workload::Process => format!("{} ({:.2})", number(figure.first()), figure.first() / spawns(record)),
        Workload::Memory if figure.value("database").is_some() => format!("{} + {}", of("own"), of("database")),
        _ => number(figure.first()),
    }
}

/// The spawn loop as it was around the process jobs.
fn spawns(record: &Record) -> f64 {
    let of = |name: &str| record.limits.iter().find(|limit| limit.name == name);
    let limit = of(limits::SPAWNS_BESIDE).or_else(|| of(limits::SPAWNS));
    limit.map_or(f64::NAN, |limit| limit.runs.iter().sum::<f64>() / limit.runs.len() as f64)
}

fn sorted(record: &Record, workload: Workload) -> Vec<&Figure> {
    let mut figures: Vec<&Figure> = record.figures.iter().filter(|f| f.workload == workload).collect();
    figures.sort_by(|a, b| b.first().total_cmp(&a.first()));
    if workload.less_is_better() {
        figures.reverse();
    }
    figures
}

fn best(record: &Record, workload: Workload) -> Option<&Figure> {
    sorted(record, workload).into_iter().next()
}

/// Hodei against the best peer, the best that syncs, and the best on PostgreSQL.
fn ratios(record: &Record) -> String {
    let mut rows = String::new();
    for workload in Workload::COMPARED {
        let figures = sorted(record, workload);
        let peers = || figures.iter().filter(|f| !f.system.starts_with(HODEI));
        let rivals = [
            peers().next(),
            peers().find(|f| f.durability == Durability::Synced),
            peers().find(|f| f.durability == Durability::Synced && on_postgres(&f.system)),
        ];
        for hodei in figures.iter().filter(|f| f.system.starts_with(HODEI)) {
            let cells = rivals.map(|rival| rival.map_or(String::new(), |rival| ratio(hodei, rival)));
            _ = writeln!(rows, "| {} | {} | {} |", workload.title(), hodei.system, cells.join(" | "));
        }
    }
    if rows.is_empty() {
        return rows;
    }
    let head = "\n## Hodei against the best\n\nHow many times the peer's figure Hodei's is, turned so that more than 1 is better for Hodei.\n\n\
                | workload | | best peer | best synced peer | best on PostgreSQL |\n|---|---|---|---|---|\n";
    format!("{head}{rows}")
}

fn ratio(hodei: &Figure, rival: &Figure) -> String {
    let (ours, theirs) = (hodei.first(), rival.first());
    let ratio = if hodei.workload.less_is_better() { theirs / ours } else { ours / theirs };
    format!("{ratio:.2} × {}", rival.system)
}

fn on_postgres(system: &str) -> bool {
    ["graphile-worker", "pg-boss", "DBOS", "apalis (PostgreSQL)"].contains(&system)
}

fn picture(record: &Record, workload: Workload) -> Option<String> {
    let figures = sorted(record, workload);
    let timed = matches!(workload, Workload::Latency | Workload::Start);
    let bars: Vec<Bar> = figures
        .iter()
        .map(|figure| Bar {
            label: figure.system.clone(),
            value: figure.first(),
            tail: figure.value("p99").filter(|_| timed).map(|value| value.median()),
            text: cell(record, figure),
            class: match figure.durability {
                _ if figure.system.starts_with(HODEI) => Class::Hodei,
                Durability::Synced => Class::Synced,
                _ => Class::NotSynced,
            },
        })
        .collect();
    let note = match workload {
        Workload::Latency | Workload::Start => {
            "milliseconds, less is better; p50 as a bar, its tail to p99; p50 / p95 / p99"
        }
        Workload::Memory => "MiB of its own processes + its database, less is better",
        Workload::Process => "jobs a second, and the share of the spawn loop",
        _ => "jobs a second",
    };
    (!bars.is_empty()).then(|| plot::bars(workload.title(), note, &bars))
}

fn gaps(record: &Record) -> String {
    if record.gaps.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n**Not measured**\n\n");
    for gap in &record.gaps {
        let what = gap.workload.map_or("everything", Workload::title);
        let why: String = gap.why.chars().take(160).collect();
        _ = writeln!(text, "- {}, {what}: {}", gap.system, why.replace(['\n', '|'], " "));
    }
    text
}

/// Values of Hodei that no peer has.
fn only_hodei(record: &Record) -> String {
    let mut text = String::new();
    let mut told: Vec<Workload> = Vec::new();
    let ours = || record.figures.iter().filter(|figure| figure.system.starts_with(HODEI));
    for workload in ours().map(|figure| figure.workload) {
        if !told.contains(&workload) {
            told.push(workload);
            let figures: Vec<&Figure> = ours().filter(|figure| figure.workload == workload).collect();
            text.push_str(&apart(workload, &figures));
        }
    }
    if text.is_empty() { text } else { format!("## More of Hodei\n\n{text}") }
}

/// A row for each value that the table of all systems does not have, a column for each way to run Hodei.
fn apart(workload: Workload, figures: &[&Figure]) -> String {
    let compared = Workload::COMPARED.contains(&workload);
    let elsewhere = |value: &Value| match value.name.as_str() {
        "p50" | "p95" | "own" | "database" => compared,
        "p99" => workload != Workload::Callers,
        _ => false,
    };
    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        for value in figure.values.iter().skip(usize::from(compared)).filter(|value| !elsewhere(value)) {
            if !names.contains(&value.name.as_str()) {
                names.push(&value.name);
            }
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let mut text = format!("### {}\n\n|", workload.title());
    figures.iter().for_each(|figure| _ = write!(text, " | {}", figure.system));
    _ = writeln!(text, " |\n|---|{}", "---:|".repeat(figures.len()));
    for name in names {
        let cell = |figure: &&Figure| {
            let said = figure.value(name).map(|value| format!("{} {}", number(value.median()), value.unit));
            said.unwrap_or_default().trim_end().to_owned()
        };
        let cells: Vec<String> = figures.iter().map(cell).collect();
        _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text + "\n"
}

fn machine(record: &Record) -> String {
    let mut text = String::from("## The machine\n\n| | |\n|---|---|\n");
    for (name, what) in &record.machine {
        _ = writeln!(text, "| {name} | {what} |");
    }
    // Each was measured before and after, in this order.
    for limit in &record.limits {
        let runs: Vec<String> = limit.runs.iter().map(|run| number(*run)).collect();
        _ = writeln!(text, "| {} | {} {} |", limit.name, runs.join(", then "), limit.unit);
    }
    text
}

fn settings(record: &Record) -> String {
    let mut text = String::from("\n## Settings\n\n| system | settings |\n|---|---|\n");
    for system in record.systems() {
        let mut told: Vec<&str> = Vec::new();
        for figure in record.figures.iter().filter(|f| f.system == system) {
            if !figure.settings.is_empty() && !told.contains(&figure.settings.as_str()) {
                told.push(&figure.settings);
            }
        }
        _ = writeln!(text, "| {system} | {} |", told.join("; "));
    }
    text
}

fn spreads(record: &Record) -> String {
    let mut rows = String::new();
    for figure in &record.figures {
        let Some(value) = figure.values.first() else { continue };
        let Some((low, high)) = value.spread() else { continue };
        let (low, high) = (number(low), number(high));
        let (what, middle) = (figure.workload.title(), number(value.median()));
        _ = writeln!(rows, "| {what} | {} | {low} | {middle} | {high} | {} |", figure.system, value.unit);
    }
    if rows.is_empty() {
        return rows;
    }
    format!("\n## Spread\n\n| workload | system | lowest | median | highest | |\n|---|---|---:|---:|---:|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::System;

    fn figure(system: &str, durability: Durability, rate: f64) -> Figure {
        let system = System { name: system.into(), version: "1".into(), durability };
        Figure::of(&system, Workload::Drain, "set").with("rate", "jobs/s", rate)
    }

    #[test]
    fn the_page_has_the_best_in_bold_and_the_ratios_that_matter() {
        let mut record = Record::default();
        record.add(figure("Hodei (SQLite)", Durability::Synced, 300.0));
        record.add(figure("BullMQ", Durability::Memory, 600.0));
        record.add(figure("pg-boss", Durability::Synced, 100.0));
        let page = page(&record, "");
        assert!(page.contains("| BullMQ 1 | none | **600** |"), "{page}");
        assert!(page.contains("| Hodei (SQLite) | 0.50 × BullMQ | 3.00 × pg-boss | 3.00 × pg-boss |"), "{page}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut record = Record::default();
        record.gaps.push(crate::record::Gap { system: "Celery".into(), workload: None, why: "no network".into() });
        assert!(page(&record, "").contains("- Celery, everything: no network"));
    }
}
