//! Lines as they are measured, for people.

use std::time::Duration;

pub fn heading(text: &str) {
    println!("\n{text}");
}

pub fn line(what: &str, figure: impl std::fmt::Display) {
    println!("  {what:<58} {figure}");
}

/// p50, p95 and p99 of some times.
pub fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or_default();
    format!("p50 {}  p95 {}  p99 {}", millis(at(0.50)), millis(at(0.95)), millis(at(0.99)))
}

pub fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
