//! `cargo xtask tidy`: the habits that neither the compiler nor clippy can check.
//!
//! Every rule is a pure function over a [`Tree`], so its test is a few lines of made-up files.

mod attributes;
mod manifests;
mod modules;
mod text;
mod tokens;

use std::{collections::BTreeMap, fmt, fs, path::Path};

use anyhow::{Context, Result, bail};

/// Text files that people write, by path from the workspace root with `/` between folders.
struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

/// One thing to put right: where it is, what is wrong, what to do.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut findings = text::check(&tree, &text::private_folders(root));
    findings.extend(attributes::check(&tree));
    findings.extend(modules::check(&tree));
    findings.extend(manifests::check(&tree)?);
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("tidy: {count} to put right in {} files", tree.files.len()),
    }
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut tree = Self { files: BTreeMap::new() };
        tree.add_folder(root, "")?;
        Ok(tree)
    }

    fn add_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !is_foreign_folder(&name) {
                self.add_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && is_text(&name) {
                self.files.insert(path, fs::read(entry.path())?);
            }
        }
        Ok(())
    }

    /// Every file with its text; bytes that are no text are a finding of their own.
    fn texts(&self) -> impl Iterator<Item = (&str, String)> {
        self.files.iter().map(|(path, bytes)| (path.as_str(), String::from_utf8_lossy(bytes).into_owned()))
    }

    fn rust(&self) -> impl Iterator<Item = (&str, String)> {
        self.texts().filter(|(path, _)| extension(path) == Some("rs"))
    }

    #[cfg(test)]
    fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        Self { files: files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).into() }
    }
}

/// Folders in which tools, not people, write.
fn is_foreign_folder(name: &str) -> bool {
    let ours = [".cargo", ".ci"].contains(&name);
    name.starts_with('.') && !ours || ["target", "node_modules"].contains(&name)
}

fn is_text(name: &str) -> bool {
    const TEXT: [&str; 16] = [
        "css", "html", "js", "json", "md", "mjs", "proto", "py", "rs", "sh", "sql", "toml", "ts", "txt", "yaml", "yml",
    ];
    extension(name).is_none_or(|extension| TEXT.contains(&extension))
}

fn extension(path: &str) -> Option<&str> {
    Path::new(path).extension()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_people_are_read() {
        assert!(is_foreign_folder("target") && is_foreign_folder(".git"));
        assert!(!is_foreign_folder(".ci") && !is_foreign_folder("src"));
        assert!(is_text("run") && is_text("lib.rs"));
        assert!(!is_text("Cargo.lock") && !is_text("logo.png"));
    }

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        let finding = Finding { path: "a/b.rs".into(), line: 3, message: "do this".into() };
        assert_eq!(finding.to_string(), "a/b.rs:3: do this");
    }
}
