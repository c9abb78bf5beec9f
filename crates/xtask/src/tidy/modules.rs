//! Dead files: every `.rs` file must be reached by `mod` from something that Cargo builds.

use std::collections::BTreeSet;

use super::{
    Finding, Tree, extension,
    manifests::Manifest,
    tokens::{Kind, Token, begins, tokens},
};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut reached = BTreeSet::new();
    let mut waiting = roots(tree);
    while let Some(file) = waiting.pop() {
        let Some(bytes) = tree.files.get(&file.path) else { continue };
        if reached.insert(file.path.clone()) {
            waiting.extend(file.children(&String::from_utf8_lossy(bytes)));
        }
    }
    let dead = tree.files.keys().filter(|path| extension(path) == Some("rs") && !reached.contains(*path));
    dead.map(|path| Finding {
        path: path.clone(),
        line: 1,
        message: "no `mod` leads here: name it in its parent or delete it".to_owned(),
    })
    .collect()
}

/// Files elsewhere that those in this folder take in by a path.
pub fn borrowed(tree: &Tree, folder: &str) -> BTreeSet<String> {
    let files = tree.files.iter().filter(|(path, _)| path.starts_with(folder) && extension(path) == Some("rs"));
    let children = files.flat_map(|(path, bytes)| {
        SourceFile { path: path.clone(), owns_folder: true }.children(&String::from_utf8_lossy(bytes))
    });
    children.map(|child| child.path).filter(|path| !path.starts_with(folder)).collect()
}

/// A source file and whether its modules lie beside it, as those of a crate root and of `mod.rs` do.
struct SourceFile {
    path: String,
    owns_folder: bool,
}

/// The files that Cargo hands to the compiler, by its conventions and by the paths in the manifests.
fn roots(tree: &Tree) -> Vec<SourceFile> {
    let named = Manifest::all(tree).into_iter().flatten().flat_map(|manifest| manifest.target_paths());
    let conventional = tree.files.keys().filter(|path| is_conventional_root(path)).cloned();
    conventional.chain(named).map(|path| SourceFile { path, owns_folder: true }).collect()
}

fn is_conventional_root(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    match parts[..] {
        ["crates", _, "build.rs"] => true,
        ["crates", _, "src", name] => name == "lib.rs" || name == "main.rs",
        ["crates", _, "src", "bin", _] => true,
        ["crates", _, "src", "bin", _, name] => name == "main.rs",
        ["crates", _, "tests" | "benches" | "examples", _] => true,
        ["crates", _, "tests" | "benches" | "examples", _, name] => name == "main.rs",
        _ => false,
    }
}

impl SourceFile {
    /// Both places in which each module that is declared here may lie.
    fn children(&self, source: &str) -> Vec<SourceFile> {
        let tokens = tokens(source);
        let beside = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = if self.owns_folder { beside } else { self.path.trim_end_matches(".rs") };
        // The inline modules that are open, each with the depth of braces outside it.
        let mut open: Vec<(usize, &str)> = Vec::new();
        let mut depth = 0;
        let mut path_attribute = None;
        let mut children = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            if let Some(path) = path_attribute_at(&tokens[at..]) {
                path_attribute = Some(path);
            } else if let Some((name, opener)) = module_at(&tokens[at..]) {
                if opener == "{" {
                    open.push((depth, name));
                } else if let Some(path) = path_attribute.take() {
                    children.push(SourceFile { path: normal(&format!("{beside}/{path}")), owns_folder: true });
                } else {
                    let place: Vec<_> = [folder].into_iter().chain(open.iter().map(|(_, name)| *name)).collect();
                    let stem = format!("{}/{name}", place.join("/"));
                    children.push(SourceFile { path: format!("{stem}.rs"), owns_folder: false });
                    children.push(SourceFile { path: format!("{stem}/mod.rs"), owns_folder: true });
                }
            } else if token.is("{") {
                depth += 1;
            } else if token.is("}") {
                depth = depth.saturating_sub(1);
                open.retain(|(outside, _)| *outside < depth);
            }
        }
        children
    }
}

/// The name of the module and `;` or `{`, when a declaration begins here.
fn module_at(tokens: &[Token]) -> Option<(&str, &str)> {
    let [keyword, name, opener, ..] = tokens else { return None };
    let declares = keyword.is("mod") && name.kind == Kind::Word && (opener.is(";") || opener.is("{"));
    declares.then_some((name.text.as_str(), opener.text.as_str()))
}

fn path_attribute_at(tokens: &[Token]) -> Option<&str> {
    let path = tokens.get(4).filter(|token| token.kind == Kind::Text)?;
    begins(tokens, &["#", "[", "path", "="]).then_some(path.text.as_str())
}

/// Takes `.` and `..` out of a path.
pub fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_file_that_no_module_names_is_dead() {
        let files = [
            ("crates/a/src/lib.rs", "mod used;\n// mod comment;\nconst S: &str = \"mod string;\";"),
            ("crates/a/src/used.rs", ""),
            ("crates/a/src/comment.rs", ""),
            ("crates/a/src/string.rs", ""),
            ("scripts/stray.rs", "fn main() {}"),
        ];
        assert_eq!(dead(files), ["crates/a/src/comment.rs", "crates/a/src/string.rs", "scripts/stray.rs"]);
    }

    #[test]
    fn what_a_dead_file_names_is_dead_too() {
        let files = [("crates/a/src/lib.rs", ""), ("crates/a/src/b.rs", "mod c;"), ("crates/a/src/b/c.rs", "")];
        assert_eq!(dead(files).len(), 2);
    }

    #[test]
    fn modules_are_found_in_every_place_the_compiler_looks() {
        let files = [
            ("crates/a/src/main.rs", "pub(crate) mod b; mod c; mod d { fn f() { {} } mod e; } mod g;"),
            ("crates/a/src/b.rs", "pub mod inner;"),
            ("crates/a/src/b/inner.rs", ""),
            ("crates/a/src/c/mod.rs", "#[path = \"../odd/name.rs\"]\nmod x; mod beside;"),
            ("crates/a/src/c/beside.rs", ""),
            ("crates/a/src/odd/name.rs", ""),
            ("crates/a/src/d/e.rs", ""),
            ("crates/a/src/g.rs", ""),
        ];
        assert!(dead(files).is_empty(), "{:?}", dead(files));
    }

    #[test]
    fn cargo_finds_targets_by_convention_and_by_manifest() {
        let files = [
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[[test]]\nname = \"t\"\npath = \"suite/t.rs\""),
            ("crates/a/build.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/suite/t.rs", ""),
            ("crates/a/suite/forgotten.rs", ""),
            ("crates/a/tests/it/main.rs", "mod support;"),
            ("crates/a/tests/it/support.rs", ""),
            ("crates/a/tests/it/forgotten.rs", ""),
        ];
        assert_eq!(dead(files), ["crates/a/suite/forgotten.rs", "crates/a/tests/it/forgotten.rs"]);
    }
}
