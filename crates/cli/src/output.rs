//! What people and programs see.

use crate::exit;
use hodei_api::v1;
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal, Write},
    time::{SystemTime, UNIX_EPOCH},
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Prints to standard output. A reader that has gone away, as `head` does, is no error.
pub fn print(text: &str) {
    to_stdout(text.as_bytes());
}

pub fn println(text: &str) {
    to_stdout(format!("{text}\n").as_bytes());
}

/// A note for people: on standard error, out of the way of what programs read.
pub fn note(text: &str) {
    to_stderr(format!("{text}\n").as_bytes());
}

pub fn print_json(value: &Value) {
    println(&value.to_string());
}

/// What cannot be printed ends the command: quietly when the reader has gone away, as `head` does.
fn to_stdout(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(exit::BROKEN_PIPE.into()),
        Err(error) => {
            note(&format!("error: cannot write to standard output: {error}"));
            std::process::exit(exit::HODEI_FAILED.into());
        }
    }
}

/// Nobody can be told that nothing can be told.
fn to_stderr(bytes: &[u8]) {
    _ = io::stderr().lock().write_all(bytes);
}

/// An error with what led to it, and colours only where somebody sees them.
pub fn complain(error: &anyhow::Error) {
    let label = if io::stderr().is_terminal() { "\x1b[1;31merror\x1b[0m" } else { "error" };
    let mut text = format!("{label}: {error}");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("\n  because: {cause}"));
    }
    note(&text);
}

/// Log entries as the job printed them, each stream to its own. What goes to one stream is written at once: a job may
/// print millions of lines.
pub fn print_entries(entries: &[v1::LogEntry], json: bool) {
    if json {
        print(&entries.iter().map(|entry| format!("{}\n", entry_json(entry))).collect::<String>());
        return;
    }
    for run in entries.chunk_by(|one, next| one.stderr == next.stderr) {
        let mut bytes = Vec::new();
        for entry in run {
            bytes.extend_from_slice(&entry.text);
            bytes.extend((!entry.unfinished).then_some(b'\n'));
        }
        match run[0].stderr {
            true => to_stderr(&bytes),
            false => to_stdout(&bytes),
        }
    }
}

/// What is known of one thing, a line each; what is empty is left out.
pub fn lines(lines: &[(&str, String)]) {
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        println(&format!("{name:<11} {value}"));
    }
}

/// A column of a table: its title, and how soon it gives way on a narrow terminal. Zero stays; of the others the highest
/// goes first. Words for people stay too, and lose their end instead: `CUT`.
pub type Column = (&'static str, u8);
pub const CUT: u8 = u8::MAX;
/// Less of a text is of no use.
const CUT_TO: usize = 12;

/// Prints a table that fits the terminal, and says what had no room there.
pub fn table(columns: &[Column], rows: &[Vec<String>]) {
    let terminal = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0);
    let plain = |cell: &String| cell.replace(char::is_control, " ");
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(plain).collect()).collect();
    let room = terminal.map(|size| usize::from(size.ws_col));
    let shown = fitting(columns, &rows, room);
    print(&laid_out(columns, &rows, &shown, room));
    let hidden = |column: &usize| !shown.contains(column) && !is_empty(columns, &rows, *column);
    let hidden: Vec<&str> = (0..columns.len()).filter(hidden).map(|column| columns[column].0).collect();
    if !hidden.is_empty() {
        dim(&format!("no room for {}; a wider terminal or --json shows all", hidden.join(", ")));
    }
}

/// A word in passing.
fn dim(text: &str) {
    match io::stderr().is_terminal() {
        true => note(&format!("\x1b[2m{text}\x1b[0m")),
        false => note(text),
    }
}

fn laid_out(columns: &[Column], rows: &[Vec<String>], shown: &[usize], room: Option<usize>) -> String {
    let fixed: usize =
        shown.iter().filter(|column| columns[**column].1 != CUT).map(|column| width(columns, rows, *column) + 2).sum();
    let room_of = |column: usize| match room {
        Some(room) if columns[column].1 == CUT => {
            room.saturating_sub(fixed).max(CUT_TO).min(width(columns, rows, column))
        }
        _ => width(columns, rows, column),
    };
    let line = |cell: &dyn Fn(usize) -> String| {
        let padded = shown.iter().map(|column| {
            let text = cut(&cell(*column), room_of(*column));
            let gap = room_of(*column).saturating_sub(text.width()) + 2;
            format!("{text}{}", " ".repeat(gap))
        });
        format!("{}\n", padded.collect::<String>().trim_end())
    };
    let title = line(&|column| columns[column].0.to_owned());
    rows.iter().fold(title, |text, row| text + &line(&|column| row[column].clone()))
}

/// The columns that are shown where there is room for so many characters. Those that people can do without are left out when
/// nothing is in them, and give way before any line wraps, because an id that wraps cannot be copied.
fn fitting(columns: &[Column], rows: &[Vec<String>], room: Option<usize>) -> Vec<usize> {
    let Some(room) = room else { return (0..columns.len()).collect() };
    let mut shown: Vec<usize> = (0..columns.len()).filter(|column| !is_empty(columns, rows, *column)).collect();
    let needs = |column: usize| match columns[column].1 {
        CUT => width(columns, rows, column).min(CUT_TO),
        _ => width(columns, rows, column),
    };
    let wide = |shown: &[usize]| shown.iter().map(|column| needs(*column) + 2).sum::<usize>() > room + 2;
    let gives_way = |column: &usize| !matches!(columns[*column].1, 0 | CUT);
    while wide(&shown)
        && let Some(last) = shown.iter().copied().filter(gives_way).max_by_key(|c| columns[*c].1)
    {
        shown.retain(|column| *column != last);
    }
    shown
}

/// Whether people can do without a column because nothing is in it.
fn is_empty(columns: &[Column], rows: &[Vec<String>], column: usize) -> bool {
    columns[column].1 > 0 && !rows.is_empty() && rows.iter().all(|row| row[column].is_empty())
}

/// How much of a line it takes, which is not the number of its characters in every script.
fn width(columns: &[Column], rows: &[Vec<String>], column: usize) -> usize {
    let cells = rows.iter().map(|row| row[column].width());
    cells.chain([columns[column].0.width()]).max().unwrap_or(0)
}

fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let mut left = room.saturating_sub(1);
    let fits = |letter: &char| {
        let wide = letter.width().unwrap_or(0);
        let fits = wide <= left;
        left = left.saturating_sub(wide);
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

pub fn state_name(state: v1::JobState) -> String {
    state.as_str_name().trim_start_matches("JOB_STATE_").to_ascii_lowercase()
}

pub fn priority_name(priority: v1::Priority) -> String {
    priority.as_str_name().trim_start_matches("PRIORITY_").to_ascii_lowercase()
}

pub fn worker_state_name(state: v1::WorkerState) -> String {
    state.as_str_name().trim_start_matches("WORKER_STATE_").to_ascii_lowercase()
}

/// "2m ago"; empty for a time that has not come.
pub fn ago(ms: i64) -> String {
    if ms == 0 {
        return String::new();
    }
    format!("{} ago", span(now_ms().saturating_sub(ms).max(0)))
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

/// The two largest units of a length: "1h 5m", "3.2s".
pub fn span(ms: i64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..10 => format!("{}.{}s", seconds, ms % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A time of day in full, or nothing.
pub fn timestamp(ms: i64) -> String {
    match ms {
        0 => String::new(),
        ms => jiff::Timestamp::from_millisecond(ms).map(|at| at.to_string()).unwrap_or_default(),
    }
}

pub fn time(ms: i64) -> Value {
    if ms == 0 { Value::Null } else { json!(timestamp(ms)) }
}

pub fn work_json(spec: &v1::JobSpec) -> Option<Value> {
    spec.work.as_ref().and_then(|work| work.kind.as_ref()).map(|kind| match kind {
        v1::work::Kind::Shell(shell) => json!({ "shell": { "program": shell.program, "args": shell.args } }),
        v1::work::Kind::Script(script) => {
            json!({ "script": { "interpreter": script.interpreter, "content": script.content } })
        }
        v1::work::Kind::Task(task) => {
            let payload: Value = serde_json::from_slice(&task.payload).unwrap_or_default();
            json!({ "task": { "type": task.r#type, "payload": payload } })
        }
    })
}

/// Never the values.
pub fn secret_names(spec: &v1::JobSpec) -> Vec<&String> {
    let mut names: Vec<&String> = spec.secrets.keys().collect();
    names.sort();
    names
}

/// A job for programs. Times are RFC 3339, or null.
pub fn job_json(job: &v1::Job) -> Value {
    let spec = job.spec.clone().unwrap_or_default();
    let (work, secrets) = (work_json(&spec), secret_names(&spec));
    let written = hodei_api::json::Job::from_wire(spec.clone());
    json!({
        "id": job.id,
        "name": spec.name,
        "queue": spec.queue,
        "priority": priority_name(spec.priority()),
        "state": state_name(job.state()),
        "attempt": job.attempt,
        "max_attempts": spec.retry.as_ref().and_then(|retry| retry.max_attempts),
        "work": work,
        "requirements": spec.requirements.clone().map(|it| hodei_api::json::Requirements::from_wire(*it)),
        "environment": spec.environment,
        "secrets": secrets,
        "created_at": time(job.created_at_ms),
        "started_at": time(job.started_at_ms),
        "finished_at": time(job.finished_at_ms),
        "delayed_until": time(job.delayed_until_ms),
        "description": (!spec.description.is_empty()).then_some(&spec.description),
        "tags": spec.tags,
        "working_directory": (!spec.working_directory.is_empty()).then_some(&spec.working_directory),
        "timeouts": written.timeouts,
        "retry": written.retry,
        "webhook": written.webhook.map(|webhook| json!({ "url": webhook.url })),
        "depends_on": spec.depends_on,
        "on_dependency_failure": written.on_dependency_failure,
        "dependencies_left": (job.dependencies_left > 0).then_some(job.dependencies_left),
        "idempotency_key": (!spec.idempotency_key.is_empty()).then_some(&spec.idempotency_key),
        "concurrency": spec.concurrency.as_ref().map(|limit| json!({ "key": limit.key, "limit": limit.limit })),
        "parent_id": (!job.parent_id.is_empty()).then_some(&job.parent_id),
        "schedule_id": (!job.schedule_id.is_empty()).then_some(&job.schedule_id),
        "tick": time(job.tick_ms),
        "data": serde_json::from_slice::<Value>(&job.data).ok(),
        "waiting_reason": (!job.waiting_reason.is_empty()).then_some(&job.waiting_reason),
        "rejected_because": (!job.rejected_because.is_empty()).then_some(&job.rejected_because),
        "cancel_reason": job.cancel_reason,
        "exit_code": job.executions.last().and_then(|execution| execution.exit_code),
        "result": serde_json::from_slice::<Value>(&job.result).ok(),
        "executions": job.executions.iter().map(execution_json).collect::<Vec<_>>(),
    })
}

fn execution_json(execution: &v1::Execution) -> Value {
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    json!({
        "id": execution.id,
        "worker_id": execution.worker_id,
        "attempt": execution.attempt,
        "assigned_at": time(execution.assigned_at_ms),
        "started_at": time(execution.started_at_ms),
        "finished_at": time(execution.finished_at_ms),
        "outcome": text(&execution.outcome),
        "failure_kind": text(&execution.failure_kind),
        "error": text(&execution.error),
        "detail": text(&execution.detail),
        "exit_code": execution.exit_code,
        "signal": execution.signal,
        "progress_percent": execution.progress_percent,
        "progress_message": text(&execution.progress_message),
        "log_entries": execution.log_entries,
    })
}

fn entry_json(entry: &v1::LogEntry) -> Value {
    json!({
        "execution_id": entry.execution_id,
        "attempt": entry.attempt,
        "number": entry.number,
        "at": time(entry.at_ms),
        "stream": if entry.stderr { "stderr" } else { "stdout" },
        "text": String::from_utf8_lossy(&entry.text),
        "unfinished": entry.unfinished,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_what_fits_and_nothing_empty() {
        let columns: [Column; 4] = [("ID", 0), ("NAME", 1), ("ZONE", 2), ("LABELS", 3)];
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = [row(["0123456789", "first", "", "a=b"]), row(["0123456789", "", "", "c=d"])];
        assert_eq!(fitting(&columns, &rows, None), [0, 1, 2, 3], "programs find each where it always is");
        assert_eq!(fitting(&columns, &rows, Some(80)), [0, 1, 3]);
        assert_eq!(fitting(&columns, &rows, Some(10 + 2 + 5 + 2 + 6)), [0, 1, 3]);
        assert_eq!(fitting(&columns, &rows, Some(10 + 2 + 5 + 2 + 5)), [0, 1]);
        assert_eq!(fitting(&columns, &rows, Some(5)), [0], "an id is whole or of no use");
        assert_eq!(fitting(&columns, &[], Some(80)), [0, 1, 2, 3]);
    }

    #[test]
    fn words_lose_their_end_before_they_go() {
        let columns: [Column; 3] = [("ID", 0), ("QUEUE", 1), ("ERROR", CUT)];
        let rows = [
            vec!["0123456789".to_owned(), "mail".to_owned(), "the disk is full and nobody has noticed".to_owned()],
            vec!["日本語".to_owned(), String::new(), "no".to_owned()],
        ];
        let shown = fitting(&columns, &rows, Some(36));
        assert_eq!(shown, [0, 1, 2]);
        let lines = "ID          QUEUE  ERROR\n0123456789  mail   the disk is full…\n日本語             no\n";
        assert_eq!(laid_out(&columns, &rows, &shown, Some(36)), lines);
        assert_eq!(fitting(&columns, &rows, Some(30)), [0, 2], "there is no room for both");
        let whole = laid_out(&columns, &rows, &[0, 1, 2], None);
        assert!(whole.contains("mail   the disk is full and nobody has noticed\n"), "{whole}");
    }
}
