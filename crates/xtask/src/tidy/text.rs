//! Rules about characters and words, in every file.

use std::{env, path::Path};

use super::{Finding, Tree, extension};

const MOST_LINES: usize = 900;
/// Cut in two, so that this file does not find itself.
const LEFTOVERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Where operating systems put people's folders.
const HOMES: [&str; 3] = [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/")];

/// The paths of this machine that must not be written down: the checkout and the home of who runs this.
pub fn private_folders(root: &Path) -> Vec<String> {
    let home = env::var_os("HOME").unwrap_or_default();
    [root, Path::new(&home)]
        .into_iter()
        // A folder right under `/` is as likely a place in a container image that every machine has.
        .filter(|folder| folder.components().count() > 2)
        .map(|folder| folder.display().to_string())
        .collect()
}

pub fn check(tree: &Tree, private: &[String]) -> Vec<Finding> {
    tree.files.iter().flat_map(|(path, bytes)| check_file(path, bytes, private)).collect()
}

fn check_file(path: &str, bytes: &[u8], private: &[String]) -> Vec<Finding> {
    let at = |line, message: &str| Finding { path: path.to_owned(), line, message: message.to_owned() };
    let mut findings = Vec::new();
    if let Err(error) = std::str::from_utf8(bytes) {
        findings.push(at(line_of(bytes, error.valid_up_to()), "not UTF-8: save it as UTF-8"));
    }
    if let Some(nul) = bytes.iter().position(|byte| *byte == 0) {
        findings.push(at(line_of(bytes, nul), "a NUL byte: remove it"));
    }
    let text = String::from_utf8_lossy(bytes);
    for (number, line) in (1..).zip(text.split('\n')) {
        findings.extend(check_line(path, line, private).into_iter().map(|message| at(number, &message)));
    }
    let lines = text.lines().count();
    if lines > MOST_LINES && is_code(path) {
        findings.push(at(lines, &format!("{lines} lines, more than {MOST_LINES}: split it by subject")));
    }
    findings
}

fn check_line(path: &str, line: &str, private: &[String]) -> Vec<String> {
    let mut messages = Vec::new();
    if is_spaced_by_hand(path) {
        if line.ends_with(char::is_whitespace) {
            messages.push("trailing whitespace: remove it".to_owned());
        }
        if line.contains('\t') {
            messages.push("a tab: write spaces, or \\t in a string".to_owned());
        }
    }
    if let Some(word) = LEFTOVERS.into_iter().find(|word| has_word(line, word)) {
        messages.push(format!("`{word}`: do it now or open an issue"));
    }
    let folders = HOMES.into_iter().chain(private.iter().map(String::as_str));
    if let Some(folder) = folders.into_iter().find(|folder| has_path(line, folder)) {
        messages.push(format!("`{folder}` is a path of one machine: make it relative or find it at run time"));
    }
    messages
}

fn line_of(bytes: &[u8], offset: usize) -> usize {
    1 + bytes[..offset].iter().filter(|byte| **byte == b'\n').count()
}

/// A change log may grow without end; code may not.
fn is_code(path: &str) -> bool {
    !matches!(extension(path), Some("md" | "txt") | None)
}

fn is_spaced_by_hand(path: &str) -> bool {
    matches!(extension(path), Some("rs" | "md" | "proto" | "sql"))
}

fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(joins) && !line[at + word.len()..].chars().next().is_some_and(joins)
    })
}

/// Whether an absolute path that begins with `folder` stands in the line, and not only a part of a longer one.
fn has_path(line: &str, folder: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || "_-.~}/".contains(c);
    line.match_indices(folder).any(|(at, _)| {
        let ends =
            folder.ends_with('/') || !line[at + folder.len()..].chars().next().is_some_and(char::is_alphanumeric);
        ends && !line[..at].chars().next_back().is_some_and(joins)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let private = ["/data/checkout".to_owned()];
        check_file(path, text.as_bytes(), &private).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[track_caller]
    fn finds(path: &str, text: &str, expected: &str) {
        let found = messages(path, text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?} is not {expected}");
    }

    #[test]
    fn leftovers_are_found_as_words() {
        finds("a.rs", concat!("fn a() {}\n// TO", "DO: more"), "a.rs:2: `TO");
        finds("a.sql", concat!("-- FIX", "ME"), "a.sql:1: `FIX");
        assert!(messages("a.rs", concat!("mktemp(\"a.XX", "XXXX\")")).is_empty());
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        finds("a.toml", concat!("dir = \"/ho", "me/ann/src\""), "a.toml:1: `/ho");
        finds("run", "cd /data/checkout", "run:1: `/data/checkout` is a path");
        assert!(messages("a.md", concat!("/data/checkouts and crates/ho", "me/x")).is_empty());
    }

    #[test]
    fn spacing_is_checked_where_it_is_written_by_hand() {
        finds("a.md", "one \ntwo\n", "a.md:1: trailing");
        finds("a.proto", "message A {\n\tint32 b = 1;\n}\n", "a.proto:2: a tab");
        finds("a.rs", "fn a() {}\r\n", "a.rs:1: trailing");
        assert!(messages("run", "cat <<-END\n\ttext\n\tEND\n").is_empty());
    }

    #[test]
    fn bytes_that_are_no_text_are_found() {
        finds("a.rs", "fn a() {}\n\0", "a.rs:2: a NUL byte");
        let found = check_file("a.txt", b"one\n\xff", &[]);
        assert!(found.len() == 1 && found[0].line == 2 && found[0].message.contains("UTF-8"), "{found:?}");
    }

    #[test]
    fn long_code_is_found() {
        finds("a.rs", &"\n".repeat(901), "a.rs:901: 901 lines");
        assert!(messages("a.rs", &"\n".repeat(900)).is_empty());
        assert!(messages("CHANGELOG.md", &"\n".repeat(901)).is_empty());
    }
}
