//! Just enough of Rust's lexer to look at code without being misled by comments and strings.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An identifier, keyword or number.
    Word,
    /// A string of any sort, without its quotes.
    Text,
    /// `::`, or any other single character.
    Sign,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    pub line: usize,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }
}

/// Whether `tokens` begin with these words and signs.
pub fn begins(tokens: &[Token], pattern: &[&str]) -> bool {
    tokens.len() >= pattern.len() && tokens.iter().zip(pattern).all(|(token, text)| token.is(text))
}

pub fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: source, line: 1, tokens: Vec::new() };
    while lexer.step() {}
    lexer.tokens
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    /// Takes one token, comment or space; false at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if first.is_whitespace() {
            self.skip(first.len_utf8());
        } else if self.rest.starts_with("//") {
            self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.skip(block_comment(self.rest));
        } else if let Some((hashes, prefix)) = raw_string(self.rest) {
            self.text(prefix, &format!("\"{}", "#".repeat(hashes)), false);
        } else if let Some(prefix) = string(self.rest) {
            self.text(prefix, "\"", true);
        } else if first == '\'' || self.rest.starts_with("b'") {
            self.quote();
        } else if is_word(first) {
            self.take(Kind::Word, self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len()));
        } else {
            self.take(Kind::Sign, if self.rest.starts_with("::") { 2 } else { first.len_utf8() });
        }
        true
    }

    fn skip(&mut self, length: usize) {
        let (skipped, rest) = self.rest.split_at(length);
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }

    fn take(&mut self, kind: Kind, length: usize) {
        self.tokens.push(Token { kind, text: self.rest[..length].to_owned(), line: self.line });
        self.skip(length);
    }

    fn text(&mut self, prefix: usize, end: &str, escapes: bool) {
        self.skip(prefix);
        let length = if escapes { escaped_length(self.rest, '"') } else { self.rest.find(end) };
        let length = length.unwrap_or(self.rest.len());
        self.take(Kind::Text, length);
        self.skip(end.len().min(self.rest.len()));
    }

    /// A character such as `'x'` or `'\n'` becomes a text; a lifetime such as `'a` loses only its quote.
    fn quote(&mut self) {
        self.skip(self.rest.find('\'').unwrap_or(0) + 1);
        let mut ahead = self.rest.chars();
        let is_character = ahead.next() == Some('\\') || ahead.next() == Some('\'');
        if is_character && let Some(length) = escaped_length(self.rest, '\'') {
            self.take(Kind::Text, length);
            self.skip(1);
        }
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The length of `r"`, `br##"` and the like with the number of hashes, when the code begins with one.
fn raw_string(code: &str) -> Option<(usize, usize)> {
    let after = ["r", "br", "cr"].iter().find_map(|prefix| code.strip_prefix(prefix))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then(|| (hashes, code.len() - after.len() + hashes + 1))
}

fn string(code: &str) -> Option<usize> {
    ["\"", "b\"", "c\""].iter().find(|prefix| code.starts_with(*prefix)).map(|prefix| prefix.len())
}

/// How far it is to a closing quote that no backslash protects.
fn escaped_length(code: &str, close: char) -> Option<usize> {
    let mut escaped = false;
    code.char_indices().find_map(|(at, c)| {
        let closes = c == close && !escaped;
        escaped = c == '\\' && !escaped;
        closes.then_some(at)
    })
}

/// The length of a block comment, which may hold others.
fn block_comment(code: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < code.len() {
        let rest = &code.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        tokens(source).into_iter().filter(|token| token.kind != Kind::Text).map(|token| token.text).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(words("a /* é never closed"), ["a"]);
    }

    #[test]
    fn strings_are_kept_apart() {
        let found = tokens(r####"x("a \" b", r#"c " d"#, b"e", 'f', '\'', b'"') y"####);
        let texts: Vec<_> = found.iter().filter(|token| token.kind == Kind::Text).map(|token| &token.text).collect();
        assert_eq!(texts, ["a \\\" b", "c \" d", "e", "f", "\\'", "\""]);
        assert_eq!(found.last().map(|token| token.text.as_str()), Some("y"));
    }

    #[test]
    fn lifetimes_open_no_string() {
        assert_eq!(words("fn f<'a>(x: &'a str)"), ["fn", "f", "<", "a", ">", "(", "x", ":", "&", "a", "str", ")"]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let found = tokens("\"a\nb\" /* \n */ c::d");
        assert_eq!(found[1..].iter().map(|token| token.line).collect::<Vec<_>>(), [3, 3, 3]);
        assert!(begins(&found[1..], &["c", "::", "d"]));
    }
}
