//! Hides secret values in what a job prints.

use aho_corasick::{AhoCorasick, BuildError, MatchKind};
use hodei_core::spec::Secret;
use std::{collections::BTreeSet, sync::Arc};

/// What stands in the place of a secret.
pub(super) const MASK: &[u8] = b"***";
/// Lines of a secret that are shorter would mask half of what a job prints.
const SHORTEST: usize = 6;

/// The values that one job must not show, in every form in which they are likely to appear.
#[derive(Debug)]
pub(crate) struct Masks {
    finder: AhoCorasick,
    patterns: Vec<Pattern>,
    longest: usize,
}

impl Masks {
    /// `None` when there is nothing to hide.
    pub(crate) fn new<'a>(secrets: impl Iterator<Item = &'a Secret>) -> Result<Option<Arc<Self>>, BuildError> {
        let forms: BTreeSet<Vec<u8>> = secrets.flat_map(|secret| forms(&secret.0)).collect();
        let Some(longest) = forms.iter().map(Vec::len).max() else { return Ok(None) };
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&forms)?;
        let patterns = forms.into_iter().map(Pattern::new).collect();
        Ok(Some(Arc::new(Self { finder, patterns, longest })))
    }

    /// Where the first suffix of `text` starts that more text could turn into a match.
    fn hold_from(&self, text: &[u8]) -> usize {
        let longest = self.patterns.iter().map(|pattern| pattern.begun_in(text)).max();
        text.len() - longest.unwrap_or(0)
    }

    /// Hides them in a text that is whole.
    pub(crate) fn apply(self: &Arc<Self>, text: &[u8]) -> Vec<u8> {
        let mut masker = Masker::new(self.clone());
        let mut shown = Vec::new();
        masker.feed(text, &mut shown);
        masker.finish(&mut shown);
        shown
    }
}

/// One value, with the table of Knuth, Morris and Pratt: for each length of a prefix, the length of the longest proper
/// prefix that is also its suffix.
#[derive(Debug)]
struct Pattern {
    text: Vec<u8>,
    shorter: Vec<usize>,
}

impl Pattern {
    fn new(text: Vec<u8>) -> Self {
        let mut pattern = Self { shorter: vec![0; text.len() + 1], text };
        for end in 1..pattern.text.len() {
            pattern.shorter[end + 1] = pattern.step(pattern.shorter[end], pattern.text[end]);
        }
        pattern
    }

    /// The length of the longest prefix that the text ends with after `byte`, if it was `matched` before.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.text[matched] != byte {
            matched = self.shorter[matched];
        }
        matched + usize::from(self.text[matched] == byte)
    }

    /// The length of the longest prefix, short of the whole, that `text` ends with.
    fn begun_in(&self, text: &[u8]) -> usize {
        let tail = &text[text.len().saturating_sub(self.text.len() - 1)..];
        tail.iter().fold(0, |matched, byte| self.step(matched, *byte))
    }
}

/// Masks a stream that comes in pieces. It holds back no more than what could still become a match.
#[derive(Debug)]
pub(super) struct Masker {
    masks: Arc<Masks>,
    held: Vec<u8>,
}

impl Masker {
    pub(super) fn new(masks: Arc<Masks>) -> Self {
        Self { masks, held: Vec::new() }
    }

    /// Takes the next piece and appends what may be shown to `shown`.
    pub(super) fn feed(&mut self, piece: &[u8], shown: &mut Vec<u8>) {
        self.held.extend_from_slice(piece);
        let text = &self.held;
        let window = text.len().saturating_sub(self.masks.longest);
        let mut hold = window + self.masks.hold_from(&text[window..]);
        let mut done = 0;
        for found in self.masks.finder.find_iter(text) {
            // What may begin before this match would win over it if it came true. What begins later cannot.
            if found.start() >= hold {
                break;
            }
            shown.extend_from_slice(&text[done..found.start()]);
            shown.extend_from_slice(MASK);
            done = found.end();
            if done > hold {
                hold = done + self.masks.hold_from(&text[done..]);
            }
        }
        shown.extend_from_slice(&text[done..hold]);
        self.held.drain(..hold);
    }

    /// The stream has ended: what is held back cannot grow any more.
    pub(super) fn finish(&mut self, shown: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.held);
        let mut done = 0;
        for found in self.masks.finder.find_iter(&text) {
            shown.extend_from_slice(&text[done..found.start()]);
            shown.extend_from_slice(MASK);
            done = found.end();
        }
        shown.extend_from_slice(&text[done..]);
    }
}

/// A secret and its lines, plain and encoded.
fn forms(secret: &str) -> Vec<Vec<u8>> {
    let lines = secret.lines().map(str::trim_end).filter(|line| line.len() >= SHORTEST);
    std::iter::once(secret).chain(lines).filter(|text| !text.is_empty()).flat_map(encodings).collect()
}

fn encodings(text: &str) -> Vec<Vec<u8>> {
    const STANDARD: &[u8; 2] = b"+/";
    const URL_SAFE: &[u8; 2] = b"-_";
    let quoted = serde_json::Value::from(text).to_string();
    let mut all = vec![
        text.to_owned(),
        quoted[1..quoted.len() - 1].to_owned(),
        percent_encoded(text, "%20"),
        percent_encoded(text, "+"),
    ];
    for last_two in [STANDARD, URL_SAFE] {
        let padded = base64(text.as_bytes(), last_two);
        all.push(padded.trim_end_matches('=').to_owned());
        all.push(padded);
    }
    all.into_iter().map(String::into_bytes).collect()
}

fn percent_encoded(text: &str, space: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => encoded.push_str(space),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Base64 with padding; the alphabets differ in their last two characters.
fn base64(bytes: &[u8], last_two: &[u8; 2]) -> String {
    let character = |six: u32| {
        let six = (six & 63) as u8;
        char::from(match six {
            0..=25 => b'A' + six,
            26..=51 => b'a' + six - 26,
            52..=61 => b'0' + six - 52,
            _ => last_two[usize::from(six - 62)],
        })
    };
    let mut encoded = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | u32::from(group.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            encoded.push(if i <= group.len() { character(bits >> (18 - 6 * i)) } else { '=' });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn masks(secrets: &[&str]) -> Arc<Masks> {
        let secrets: Vec<_> = secrets.iter().map(|secret| Secret((*secret).to_owned())).collect();
        Masks::new(secrets.iter()).expect("small enough").expect("some secrets")
    }

    fn in_pieces(masks: &Arc<Masks>, text: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut masker = Masker::new(masks.clone());
        let mut shown = Vec::new();
        let mut rest = text;
        for cut in cuts {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            masker.feed(piece, &mut shown);
            rest = after;
        }
        masker.feed(rest, &mut shown);
        masker.finish(&mut shown);
        shown
    }

    /// What leftmost-longest means, without any cleverness.
    fn plainly(masks: &Masks, text: &[u8]) -> Vec<u8> {
        let mut shown = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let fits = |pattern: &&Pattern| text[at..].starts_with(&pattern.text);
            match masks.patterns.iter().filter(fits).map(|pattern| pattern.text.len()).max() {
                Some(length) => {
                    shown.extend_from_slice(MASK);
                    at += length;
                }
                None => {
                    shown.push(text[at]);
                    at += 1;
                }
            }
        }
        shown
    }

    proptest! {
        /// A tiny alphabet makes overlaps, repeats and near misses common.
        #[test]
        fn where_the_pieces_are_cut_does_not_matter(
            secrets in prop::collection::vec("[ab]{2,6}", 1..4),
            text in "[abc]{0,80}",
            cuts in prop::collection::vec(0usize..6, 0..30),
        ) {
            let secrets: Vec<_> = secrets.iter().map(String::as_str).collect();
            let masks = masks(&secrets);
            let shown = in_pieces(&masks, text.as_bytes(), &cuts);
            prop_assert_eq!(shown, plainly(&masks, text.as_bytes()));
        }

        #[test]
        fn base64_is_what_others_make_of_it(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let encoded = base64(&bytes, b"+/");
            prop_assert_eq!(encoded.len(), bytes.len().div_ceil(3) * 4);
            prop_assert!(encoded.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c)));
        }
    }

    #[test]
    fn known_base64() {
        assert_eq!(base64(b"", b"+/"), "");
        assert_eq!(base64(b"f", b"+/"), "Zg==");
        assert_eq!(base64(b"fo", b"+/"), "Zm8=");
        assert_eq!(base64(b"foobar", b"+/"), "Zm9vYmFy");
        assert_eq!(base64(&[0xfb, 0xff], b"-_"), "-_8=");
    }

    #[test]
    fn every_form_is_hidden() {
        let masks = masks(&["p\"ss wörd?>"]);
        for form in [
            r#"p"ss wörd?>"#,
            r#"p\"ss wörd?>"#,
            "p%22ss%20w%C3%B6rd%3F%3E",
            "p%22ss+w%C3%B6rd%3F%3E",
            "cCJzcyB3w7ZyZD8+",
        ] {
            assert_eq!(masks.apply(format!("<{form}>").as_bytes()), b"<***>", "{form}");
        }
    }

    #[test]
    fn each_line_of_a_long_secret_is_hidden() {
        let masks = masks(&["first line\nsecond line\nend"]);
        assert_eq!(masks.apply(b"a first line b\nsecond line\nend\n"), b"a *** b\n***\nend\n");
        assert_eq!(masks.apply(b"first line\nsecond line\nend\n"), b"***\n");
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let mut masker = Masker::new(masks(&["secret-value"]));
        let mut shown = Vec::new();
        masker.feed(b"hello sec", &mut shown);
        assert_eq!(shown, b"hello ");
        masker.feed(b"ond ", &mut shown);
        assert_eq!(shown, b"hello second ");
    }
}
