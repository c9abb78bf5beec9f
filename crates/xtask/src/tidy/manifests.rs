//! Dependencies: none that is not used, none of ours against the layering, none that the brain must not have.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::{
    Finding, Tree,
    modules::{borrowed, normal},
    tokens::{Kind, Token, tokens},
};

/// Each crate of this workspace and the ones of ours that it may use, tests included: a test that needs more belongs
/// to a crate further up. Nothing that is delivered may use `hodei` (the binary), nothing at all may use `xtask`.
const LAYERS: &[(&str, &[&str])] = &[
    ("hodei-supervise", &[]),
    ("hodei-core", &["hodei-supervise"]),
    ("hodei-api", &["hodei-core"]),
    ("hodei-store", &["hodei-core"]),
    ("hodei-worker", &["hodei-supervise", "hodei-core", "hodei-api"]),
    ("hodei-provider", &["hodei-core"]),
    ("hodei-sdk", &["hodei-api", "hodei-worker"]),
    ("hodei-server", &["hodei-core", "hodei-api", "hodei-store", "hodei-provider"]),
    (
        "hodei",
        &["hodei-core", "hodei-api", "hodei-store", "hodei-worker", "hodei-server", "hodei-sdk", "hodei-provider"],
    ),
    ("hodei-bench", &["hodei-core", "hodei-api", "hodei-sdk"]),
    ("hodei-sim", &["hodei-core"]),
    ("hodei-chaos", &["hodei-api"]),
    ("hodei-fuzz", &["hodei-core", "hodei-api", "hodei-store", "hodei-worker", "hodei-server", "hodei"]),
    ("xtask", &[]),
];

/// The crates without IO, clock and randomness, and what each may use.
///
/// `croner` and `jiff` compute: ticks of cron expressions, in time zones whose rules are inside the program.
const PURE: [(&str, &[&str]); 2] = [
    ("hodei-supervise", &["serde", "thiserror"]),
    ("hodei-core", &["croner", "hodei-supervise", "jiff", "serde", "thiserror", "uuid"]),
];
const PURE_IN_TESTS: [&str; 1] = ["proptest"];

/// Used by the code that `tonic::include_proto!` brings in, which no source file shows.
const USED_BY_GENERATED_CODE: [&str; 3] = ["prost", "tonic", "tonic-prost"];

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let manifests = Manifest::all(tree)?;
    let mut findings = Vec::new();
    for manifest in &manifests {
        findings.extend(manifest.unused(tree));
        findings.extend(manifest.against_layers());
        findings.extend(manifest.impure());
    }
    findings.extend(unused_in_workspace(tree, &manifests)?);
    Ok(findings)
}

/// A member's Cargo.toml.
pub struct Manifest {
    path: String,
    text: String,
    table: Table,
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Normal,
    Dev,
    Build,
}

struct Dependency {
    name: String,
    section: Section,
    line: usize,
}

impl Manifest {
    pub fn all(tree: &Tree) -> Result<Vec<Self>> {
        let members = tree.files.keys().filter(|path| path.starts_with("crates/") && path.ends_with("/Cargo.toml"));
        members.map(|path| Self::read(tree, path)).collect()
    }

    fn read(tree: &Tree, path: &str) -> Result<Self> {
        let (text, table) = parse(tree, path)?;
        let name = table.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        let name = name.with_context(|| format!("{path} has no package name"))?.to_owned();
        Ok(Self { path: path.to_owned(), text, table, name })
    }

    fn folder(&self) -> &str {
        self.path.trim_end_matches("Cargo.toml")
    }

    /// The source files that this manifest names as the roots of targets.
    pub fn target_paths(&self) -> Vec<String> {
        let lists = ["bin", "test", "bench", "example"].iter().filter_map(|kind| self.table.get(*kind)?.as_array());
        let targets = lists.flatten().chain(self.table.get("lib"));
        let paths = targets.filter_map(|target| target.get("path")?.as_str());
        paths.map(|path| normal(&format!("{}{path}", self.folder()))).collect()
    }

    fn dependencies(&self) -> Vec<Dependency> {
        let targets = self.table.get("target").and_then(Value::as_table);
        let tables = [&self.table].into_iter().chain(targets.into_iter().flatten().filter_map(|(_, t)| t.as_table()));
        let mut dependencies = Vec::new();
        for table in tables {
            for (key, section) in SECTIONS {
                for name in table.get(key).and_then(Value::as_table).into_iter().flat_map(Table::keys) {
                    let line = line_of(&self.text, &format!("{key}]"), name);
                    dependencies.push(Dependency { name: name.clone(), section, line });
                }
            }
        }
        dependencies
    }

    fn finding(&self, dependency: &Dependency, message: String) -> Finding {
        Finding { path: self.path.clone(), line: dependency.line, message }
    }

    fn unused(&self, tree: &Tree) -> Vec<Finding> {
        let build_script = format!("{}build.rs", self.folder());
        let in_folders = |folders: &[&str]| {
            let folders: Vec<_> = folders.iter().map(|name| format!("{}{name}/", self.folder())).collect();
            let borrowed: BTreeSet<_> = folders.iter().flat_map(|folder| borrowed(tree, folder)).collect();
            uses(tree, |path| borrowed.contains(path) || folders.iter().any(|folder| path.starts_with(folder)))
        };
        let normal = in_folders(&["src"]);
        let dev = in_folders(&["src", "tests", "benches", "examples"]);
        let build = uses(tree, |path| path == build_script);
        let unused = self.dependencies().into_iter().filter_map(|dependency| {
            let (used, place) = match dependency.section {
                Section::Normal => (&normal, "src"),
                Section::Dev => (&dev, "src, tests, benches or examples"),
                Section::Build => (&build, "build.rs"),
            };
            let name = &dependency.name;
            let message = format!("`{name}` is not used in {place}: remove it, or move it to where it is used");
            (!used.contains(&identifier(name))).then(|| self.finding(&dependency, message))
        });
        unused.collect()
    }

    fn against_layers(&self) -> Vec<Finding> {
        // A workspace of its own, such as a program that drives a peer of the benchmark, may use none of ours.
        let apart: Option<&(&str, &[&str])> = self.table.contains_key("workspace").then_some(&("", &[]));
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == self.name).or(apart) else {
            let message = format!("`{}` has no place in the layering: give it one in xtask's LAYERS", self.name);
            return vec![Finding { path: self.path.clone(), line: 1, message }];
        };
        let ours = |name: &str| LAYERS.iter().any(|(member, _)| *member == name);
        let wrong = self.dependencies().into_iter().filter(|dependency| {
            let name = dependency.name.as_str();
            ours(name) && !allowed.contains(&name)
        });
        wrong
            .map(|dependency| {
                let may = if allowed.is_empty() { "none of ours".to_owned() } else { allowed.join(", ") };
                let message = format!("`{}` may not use `{}`, only {may}", self.name, dependency.name);
                self.finding(&dependency, message)
            })
            .collect()
    }

    fn impure(&self) -> Vec<Finding> {
        let Some((_, pure)) = PURE.iter().find(|(name, _)| *name == self.name) else { return Vec::new() };
        let wrong = self.dependencies().into_iter().filter(|dependency| {
            let name = dependency.name.as_str();
            let allowed_in_tests = dependency.section == Section::Dev && PURE_IN_TESTS.contains(&name);
            !pure.contains(&name) && !allowed_in_tests
        });
        wrong
            .map(|dependency| {
                let message = format!(
                    "`{}` is not among what {} may use ({}; in tests {}): pass in what it would bring",
                    dependency.name,
                    self.name,
                    pure.join(", "),
                    PURE_IN_TESTS.join(", ")
                );
                self.finding(&dependency, message)
            })
            .collect()
    }
}

const SECTIONS: [(&str, Section); 3] =
    [("dependencies", Section::Normal), ("dev-dependencies", Section::Dev), ("build-dependencies", Section::Build)];

fn unused_in_workspace(tree: &Tree, manifests: &[Manifest]) -> Result<Vec<Finding>> {
    const PATH: &str = "Cargo.toml";
    let (text, table) = parse(tree, PATH)?;
    let used: BTreeSet<_> =
        manifests.iter().flat_map(Manifest::dependencies).map(|dependency| dependency.name).collect();
    let shared = table.get("workspace").and_then(|workspace| workspace.get("dependencies")).and_then(Value::as_table);
    let unused = shared.into_iter().flat_map(Table::keys).filter(|name| !used.contains(*name));
    let findings = unused.map(|name| Finding {
        path: PATH.to_owned(),
        line: line_of(&text, "workspace.dependencies]", name),
        message: format!("no crate uses `{name}`: remove it"),
    });
    Ok(findings.collect())
}

fn parse(tree: &Tree, path: &str) -> Result<(String, Table)> {
    let bytes = tree.files.get(path).with_context(|| format!("there is no {path}"))?;
    let text = String::from_utf8_lossy(bytes).into_owned();
    let table = text.parse().with_context(|| format!("cannot read {path}"))?;
    Ok((text, table))
}

/// Where a key stands in a section; 1 when it is written in some other way.
fn line_of(text: &str, section_end: &str, key: &str) -> usize {
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.starts_with('[') {
            inside = line.ends_with(section_end) && !line.ends_with(&format!("-{section_end}"));
        } else if inside && line.trim_start_matches('"').strip_prefix(key).is_some_and(|rest| rest.starts_with(KEY_END))
        {
            return number;
        }
    }
    1
}

const KEY_END: [char; 4] = ['.', ' ', '=', '"'];

fn identifier(name: &str) -> String {
    name.replace('-', "_")
}

/// The names that begin a path in the chosen source files: all that could be a crate.
fn uses(tree: &Tree, chosen: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, source) in tree.rust().filter(|(path, _)| chosen(path)) {
        let tokens = tokens(&source);
        names.extend((0..tokens.len()).filter_map(|at| path_start(&tokens, at)));
        // Attributes name paths in strings, as in `#[serde(with = "a::b")]`.
        let texts = tokens.iter().filter(|token| token.kind == Kind::Text);
        names.extend(texts.filter_map(|token| Some(token.text.split_once("::")?.0.to_owned())));
        if tokens.iter().any(|token| token.is("include_proto")) {
            names.extend(USED_BY_GENERATED_CODE.map(identifier));
        }
    }
    names
}

/// The word at `at` when it begins a path (`a::b`, `::a::b`) or is imported alone (`use a;`).
fn path_start(tokens: &[Token], at: usize) -> Option<String> {
    let token = tokens.get(at).filter(|token| token.kind == Kind::Word)?;
    let before = |distance: usize| at.checked_sub(distance).and_then(|at| tokens.get(at));
    let is_continued = tokens.get(at + 1).is_some_and(|next| next.is("::"));
    let is_import = before(1).is_some_and(|keyword| keyword.is("use") || keyword.is("crate"));
    let follows_path = before(1).is_some_and(|sign| sign.is("::"))
        && before(2).is_some_and(|word| word.is(">") || word.kind == Kind::Word && !is_keyword_before_path(word));
    ((is_continued || is_import) && !follows_path).then(|| token.text.clone())
}

/// Words that may stand before a path that begins with `::`.
fn is_keyword_before_path(word: &Token) -> bool {
    ["use", "impl", "for", "dyn", "as", "return", "in", "mut", "match", "if", "else", "where"]
        .iter()
        .any(|keyword| word.is(keyword))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "[workspace.dependencies]\nbytes = \"1\"\n";

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    fn findings<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::of(files)).unwrap().into_iter().map(|finding| finding.to_string()).collect()
    }

    #[track_caller]
    fn finds(found: &[String], expected: &[&str]) {
        let same = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.starts_with(e));
        assert!(same, "{found:#?}\nis not\n{expected:#?}");
    }

    /// The findings of one crate with this manifest and source.
    fn check_crate(name: &str, rest: &str, source: &str) -> Vec<String> {
        let workspace = "[workspace]\n";
        findings([
            ("Cargo.toml", workspace),
            ("crates/a/Cargo.toml", &manifest(name, rest)),
            ("crates/a/src/lib.rs", source),
        ])
    }

    #[test]
    fn a_dependency_that_no_code_names_is_found() {
        let rest = "[dependencies]\nbytes.workspace = true\nserde-json = \"1\"\n";
        let source = "// bytes::Bytes\nlet bytes = crate::bytes::of(a.bytes);\nuse serde_json::{Value};";
        finds(&check_crate("hodei-api", rest, source), &["crates/a/Cargo.toml:4: `bytes` is not used in src"]);
    }

    #[test]
    fn a_file_that_is_taken_in_from_elsewhere_counts() {
        let files = [
            ("Cargo.toml", "[workspace]\n"),
            ("crates/a/Cargo.toml", &manifest("hodei-api", "[dev-dependencies]\nbytes = \"1\"\n")),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/tests/e2e/main.rs", "#[path = \"../../../b/src/shared.rs\"]\nmod shared;"),
            ("crates/b/src/shared.rs", "use bytes::Bytes;"),
        ];
        finds(&findings(files), &[]);
    }

    #[test]
    fn every_way_to_use_a_crate_counts() {
        let rest = "[dependencies]\nbytes = \"1\"\n";
        for source in [
            "use bytes::Bytes;",
            "use ::bytes::Bytes;",
            "use {bytes::Bytes, std::fs};",
            "pub use bytes;",
            "extern crate bytes;",
            "#[bytes::main] fn main() {}",
            "fn f(a: &[::bytes::Bytes]) {}",
            "#[serde(with = \"bytes::text\")] struct A;",
        ] {
            finds(&check_crate("hodei-api", rest, source), &[]);
        }
    }

    #[test]
    fn each_section_is_looked_up_in_its_own_files() {
        let rest = "[dependencies]\nbytes = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n[build-dependencies]\nprotox = \"1\"\n";
        let api = manifest("hodei-api", rest);
        let files = |test: &'static str, build: &'static str| {
            findings([
                ("Cargo.toml", WORKSPACE),
                ("crates/a/Cargo.toml", &api),
                ("crates/a/src/lib.rs", "use bytes::Bytes;"),
                ("crates/a/tests/it.rs", test),
                ("crates/a/build.rs", build),
            ])
        };
        finds(&files("use proptest::prelude::*;", "fn main() { protox::compile() }"), &[]);
        finds(
            &files("use protox::x;", "use proptest::y;"),
            &[
                "crates/a/Cargo.toml:6: `proptest` is not used in src, tests",
                "crates/a/Cargo.toml:8: `protox` is not used in build.rs",
            ],
        );
    }

    #[test]
    fn generated_code_uses_what_it_is_known_to_use() {
        let rest = "[dependencies]\nprost = \"1\"\ntonic = \"1\"\ntonic-prost = \"1\"\n";
        finds(&check_crate("hodei-api", rest, "tonic::include_proto!(\"hodei.v1\");"), &[]);
        assert_eq!(check_crate("hodei-api", rest, "").len(), 3);
    }

    #[test]
    fn a_shared_dependency_that_no_crate_takes_is_found() {
        let api = manifest("hodei-api", "");
        finds(
            &findings([("Cargo.toml", WORKSPACE), ("crates/a/Cargo.toml", &api)]),
            &["Cargo.toml:2: no crate uses `bytes`"],
        );
    }

    #[test]
    fn a_crate_uses_only_the_layers_below_it() {
        let source = "use hodei_core::a; use hodei_store::b; use hodei::c;";
        let rest = "[dependencies]\nhodei-core = \"1\"\nhodei-store = \"1\"\n";
        finds(&check_crate("hodei-server", rest, source), &[]);
        finds(
            &check_crate("hodei-worker", rest, source),
            &["crates/a/Cargo.toml:5: `hodei-worker` may not use `hodei-store`"],
        );
        let rest = "[dev-dependencies]\nhodei = \"1\"\n";
        finds(
            &check_crate("hodei-server", rest, source),
            &["crates/a/Cargo.toml:4: `hodei-server` may not use `hodei`"],
        );
        finds(&check_crate("hodei-new", "", ""), &["crates/a/Cargo.toml:1: `hodei-new` has no place"]);
    }

    #[test]
    fn a_workspace_of_its_own_uses_none_of_ours() {
        finds(&check_crate("apart", "[workspace]\n", ""), &[]);
        let rest = "[workspace]\n[dependencies]\nhodei-api = \"1\"\n";
        finds(
            &check_crate("apart", rest, "use hodei_api::a;"),
            &["crates/a/Cargo.toml:5: `apart` may not use `hodei-api`"],
        );
    }

    #[test]
    fn the_pure_crates_keep_to_their_lists() {
        let source = "use serde::a; use tokio::b; use proptest::c;";
        let rest = "[dependencies]\nserde = \"1\"\ntokio = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n";
        finds(&check_crate("hodei-core", rest, source), &["crates/a/Cargo.toml:5: `tokio` is not among"]);
        let rest = "[target.'cfg(unix)'.dependencies]\nproptest = \"1\"\n";
        finds(&check_crate("hodei-core", rest, source), &["crates/a/Cargo.toml:4: `proptest` is not among"]);
        let rest = "[dependencies]\nuuid = \"1\"\n";
        finds(&check_crate("hodei-core", rest, "use uuid::a;"), &[]);
        finds(&check_crate("hodei-supervise", rest, "use uuid::a;"), &["crates/a/Cargo.toml:4: `uuid` is not among"]);
    }
}
