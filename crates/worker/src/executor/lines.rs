//! Cuts a stream of bytes into lines.

use hodei_api::logs::MAX_TEXT;
use std::io::BufRead;

/// The beginning of a line whose end has not come yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Gives the text of each line to `push`, and whether the line goes on, for as long as `push` returns true. Returns
    /// the bytes that were not looked at.
    pub(crate) fn feed<'b>(&mut self, mut bytes: &'b [u8], mut push: impl FnMut(&[u8], bool) -> bool) -> &'b [u8] {
        while !bytes.is_empty() {
            // One byte more than a piece holds: a newline right after a full piece must not make another line.
            let window = &bytes[..bytes.len().min(MAX_TEXT + 1 - self.begun.len())];
            let seen = { window }.skip_until(b'\n').unwrap_or(0);
            let whole = window[..seen].ends_with(b"\n");
            if !whole && self.begun.len() + seen <= MAX_TEXT {
                self.begun.extend_from_slice(window);
                return &[];
            }
            let size = if whole { seen - 1 } else { MAX_TEXT - self.begun.len() };
            let go_on = self.join(&bytes[..size], |text| push(text, !whole));
            bytes = &bytes[size + usize::from(whole)..];
            if !go_on {
                break;
            }
        }
        bytes
    }

    /// What is left when the stream has ended.
    pub(crate) fn last(&mut self) -> Option<Vec<u8>> {
        (!self.begun.is_empty()).then(|| std::mem::take(&mut self.begun))
    }

    fn join(&mut self, end: &[u8], push: impl FnOnce(&[u8]) -> bool) -> bool {
        if self.begun.is_empty() {
            return push(end);
        }
        self.begun.extend_from_slice(end);
        let go_on = push(&self.begun);
        self.begun.clear();
        go_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(pieces: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                rest = lines.feed(rest, |text, unfinished| {
                    found.push((text.to_vec(), unfinished));
                    found.len() % 3 != 0
                });
            }
        }
        found.extend(lines.last().map(|text| (text, true)));
        found
    }

    #[test]
    fn a_full_piece_and_a_newline_are_one_line() {
        for split in [1, 1000, MAX_TEXT - 1, MAX_TEXT, MAX_TEXT + 1] {
            let mut text = vec![b'x'; MAX_TEXT];
            text.extend_from_slice(b"\ny\n");
            let (front, back) = text.split_at(split);
            let found = cut(&[front, back]);
            assert_eq!(found, [(vec![b'x'; MAX_TEXT], false), (b"y".to_vec(), false)]);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_moved(text in prop::collection::vec(0u8..4, 0..300), long in 0usize..200_000, cut_at in any::<prop::sample::Index>()) {
            let newline = |byte: &u8| if *byte == 0 { b'\n' } else { *byte };
            let mut bytes: Vec<u8> = text.iter().map(newline).collect();
            bytes.splice(bytes.len() / 2..bytes.len() / 2, vec![b'z'; long]);
            let (front, back) = bytes.split_at(cut_at.index(bytes.len() + 1));
            let mut joined = Vec::new();
            for (line, unfinished) in cut(&[front, back]) {
                prop_assert!(line.len() <= MAX_TEXT);
                joined.extend_from_slice(&line);
                if !unfinished {
                    joined.push(b'\n');
                }
            }
            prop_assert_eq!(joined, bytes);
        }
    }
}
