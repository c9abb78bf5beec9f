//! What a job tells about how far it is: lines such as `42.5 resizing images`.

use hodei_core::job::Progress;
use std::time::Duration;
use tokio::time::Instant;

/// At most one report in this time.
const INTERVAL: Duration = Duration::from_millis(200);
/// Longer lines are cut.
const LONGEST: usize = 4 << 10;

/// Collects reports and says when the latest may be passed on.
#[derive(Debug, Default)]
pub(super) struct ProgressLines {
    begun: Vec<u8>,
    latest: Option<Progress>,
    last: Option<Instant>,
}

impl ProgressLines {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST - self.begun.len();
            self.begun.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.take_line();
            }
        }
    }

    /// The job has ended: a line without a newline counts, too.
    pub(super) fn finish(&mut self) -> Option<Progress> {
        self.take_line();
        self.latest.take()
    }

    fn take_line(&mut self) {
        if let Some(progress) = parse(&String::from_utf8_lossy(&self.begun)) {
            self.latest = Some(progress);
        }
        self.begun.clear();
    }

    /// When there is something to pass on.
    pub(super) fn due(&self) -> Option<Instant> {
        self.latest.as_ref()?;
        Some(self.last.map_or_else(Instant::now, |last| last + INTERVAL))
    }

    pub(super) fn take(&mut self) -> Option<Progress> {
        self.last = Some(Instant::now());
        self.latest.take()
    }
}

fn parse(line: &str) -> Option<Progress> {
    let line = line.trim();
    let (percent, message) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let percent: f64 = percent.trim_end_matches('%').parse().ok()?;
    let in_range = percent.is_finite() && (0.0..=100.0).contains(&percent);
    in_range.then(|| Progress { basis_points: (percent * 100.0).round() as u16, message: message.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(basis_points: u16, message: &str) -> Option<Progress> {
        Some(Progress { basis_points, message: message.to_owned() })
    }

    #[test]
    fn lines_are_read() {
        assert_eq!(parse("42.5 half way "), progress(4250, "half way"));
        assert_eq!(parse("100%"), progress(10_000, ""));
        for bad in ["", "half", "-1", "101", "NaN", "inf"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_latest_counts_and_long_lines_do_no_harm() {
        let mut lines = ProgressLines::default();
        lines.feed(b"1 a\n2 b\n3");
        assert_eq!(lines.take(), progress(200, "b"));
        lines.feed(b" c");
        lines.feed(&[b'x'; 10_000]);
        lines.feed(b"\n4 d");
        assert!(lines.latest.as_ref().is_some_and(|latest| latest.basis_points == 300));
        assert_eq!(lines.finish(), progress(400, "d"));
    }
}
