//! Code that is switched off: skipped tests, silenced warnings about dead code, placeholders that panic.

use super::{
    Finding, Tree,
    tokens::{Kind, Token, begins, tokens},
};

const PLACEHOLDERS: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(|(path, source)| check_source(path, &source)).collect()
}

fn check_source(path: &str, source: &str) -> Vec<Finding> {
    let tokens = tokens(source);
    let at = |line, message: String| Finding { path: path.to_owned(), line, message };
    (0..tokens.len())
        .filter_map(|start| {
            let rest = &tokens[start..];
            let message = placeholder(rest).or_else(|| attribute(rest).and_then(switched_off))?;
            Some(at(rest[0].line, message))
        })
        .collect()
}

fn placeholder(rest: &[Token]) -> Option<String> {
    let name = PLACEHOLDERS.iter().find(|name| begins(rest, &[name, "!", "("]))?;
    Some(format!("`{name}!` is a placeholder: finish it or leave it out"))
}

/// The tokens inside `#[…]` or `#![…]`, when `rest` begins with one.
fn attribute(rest: &[Token]) -> Option<&[Token]> {
    let body = if begins(rest, &["#", "["]) {
        &rest[2..]
    } else if begins(rest, &["#", "!", "["]) {
        &rest[3..]
    } else {
        return None;
    };
    let mut depth = 1;
    let end = body.iter().position(|token| {
        depth += i32::from(token.is("[")) - i32::from(token.is("]"));
        depth == 0
    })?;
    Some(&body[..end])
}

fn switched_off(attribute: &[Token]) -> Option<String> {
    if attribute.iter().any(|token| token.is("ignore")) {
        return Some("an ignored test proves nothing: make it run or remove it".into());
    }
    let silences = attribute.iter().any(|token| token.is("allow") || token.is("expect"));
    let lint = attribute.iter().find(|token| token.is("dead_code") || is_unused_lint(token))?;
    silences.then(|| format!("`{}` is silenced: remove what nothing uses", lint.text))
}

fn is_unused_lint(token: &Token) -> bool {
    token.kind == Kind::Word && (token.text == "unused" || token.text.starts_with("unused_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: &str) -> Vec<usize> {
        check_source("x.rs", source).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(lines("\n#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}"), [2, 4]);
        assert_eq!(lines("#[cfg_attr(miri, ignore)] fn a() {}"), [1]);
    }

    #[test]
    fn silenced_dead_code_is_found() {
        assert_eq!(lines("#![allow(dead_code)]"), [1]);
        assert_eq!(lines("#[allow(\n    clippy::all,\n    unused_imports\n)] use a;"), [1]);
        assert_eq!(lines("#[expect(unused)] fn a() {}"), [1]);
    }

    #[test]
    fn placeholders_are_found() {
        assert_eq!(lines("fn a() {\n todo!()\n}\nfn b() { unimplemented!(\"x\") }\nfn c() { dbg!(1); }"), [2, 4, 5]);
    }

    #[test]
    fn words_elsewhere_are_fine() {
        let source = "// todo!() and #[ignore]\nlet a = \"#[allow(dead_code)]\";\n#[allow(clippy::all)] fn ignore() {}";
        assert_eq!(lines(source), []);
        assert_eq!(lines("#[deny(dead_code, unused)] fn a() {}\nlet unused_slots = x.expect(\"unused\");"), []);
    }
}
