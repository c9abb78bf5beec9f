//! The end of what a program printed.

/// So much of it is kept.
const KEPT: usize = 4 << 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tail(Vec<u8>);

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        self.0.extend_from_slice(bytes);
        // Not at every piece: what is cut off must be moved over.
        if self.0.len() > 2 * KEPT {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.0.drain(..self.0.len().saturating_sub(KEPT));
    }

    pub(crate) fn text(mut self) -> String {
        self.cut();
        String::from_utf8_lossy(&self.0).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept() {
        let mut tail = Tail::default();
        (0..5000).for_each(|n| tail.push(format!("{n}\n").as_bytes()));
        let text = tail.clone().text();
        assert!(text.len() <= KEPT && text.ends_with("4998\n4999"), "{text}");
        tail.push(&[b'x'; 100_000]);
        assert_eq!(tail.text(), "x".repeat(KEPT));
    }
}
