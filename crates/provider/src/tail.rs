//! The end of a text.

/// The last `bytes` of it, from the beginning of a line where it has several.
pub(crate) fn of(bytes: &[u8], limit: usize) -> String {
    let end = &bytes[bytes.len().saturating_sub(limit)..];
    let cut = bytes.len() > limit;
    let line = end.iter().position(|byte| *byte == b'\n').filter(|at| cut && at + 1 < end.len());
    String::from_utf8_lossy(&end[line.map_or(0, |at| at + 1)..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn a_tail_begins_with_a_line() {
        assert_eq!(of(b"one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(of(b"one\ntwo\nthree\n", 8), "three\n");
        assert_eq!(of(b"a long line", 4), "line");
        assert_eq!(of(b"line\n", 3), "ne\n");
        assert_eq!(of(b"", 3), "");
    }
}
