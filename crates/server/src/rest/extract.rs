//! What requests carry, read strictly: whatever is not understood is refused by its name.

use super::problem::{Error, Result};
use crate::calls::is_json;
use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use bytes::Bytes;
use hodei_api::json::{self, Object};
use hodei_core::{spec::Invalid, time::Time};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, str::FromStr};

/// Of a body that carries jobs.
pub const MAX_JOBS_BODY: usize = 64 << 20;
/// Of every other body.
const MAX_BODY: usize = 2 << 20;

/// The parameters of a query.
#[derive(Debug, Default)]
pub struct Args(BTreeMap<String, Vec<String>>);

/// Something that is made of a query's parameters.
pub trait FromArgs: Sized {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid>;
}

/// All that a query says; a parameter that nobody asks for is refused.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: FromArgs> FromRequestParts<S> for Query<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let mut args = Args::parse(parts.uri.query().unwrap_or_default())?;
        let read = T::from_args(&mut args)?;
        args.nothing_left()?;
        Ok(Self(read))
    }
}

/// No parameters at all.
pub struct NoQuery;

impl FromArgs for NoQuery {
    fn from_args(_: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self)
    }
}

impl Args {
    fn parse(query: &str) -> Result<Self> {
        let mut args = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            args.0.entry(decoded(name)?).or_default().push(decoded(value)?);
        }
        Ok(args)
    }

    fn nothing_left(&self) -> std::result::Result<(), Invalid> {
        match self.0.keys().next() {
            Some(name) => Err(Invalid::new(name.as_str(), "there is no such parameter")),
            None => Ok(()),
        }
    }

    pub fn many(&mut self, name: &str) -> Vec<String> {
        self.0.remove(name).unwrap_or_default()
    }

    pub fn text(&mut self, name: &str) -> std::result::Result<Option<String>, Invalid> {
        let mut values = self.many(name);
        match (values.pop(), values.is_empty()) {
            (None, _) => Ok(None),
            (Some(value), true) if value.is_empty() => Err(Invalid::new(name, "is empty; leave it out")),
            (Some(value), true) => Ok(Some(value)),
            (Some(_), false) => Err(Invalid::new(name, "is given more than once")),
        }
    }

    pub fn parsed<T: FromStr>(&mut self, name: &str, what: &str) -> std::result::Result<Option<T>, Invalid> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Invalid::new(name, format!("'{text}' is not {what}")))
    }

    /// The size of a page.
    pub fn limit(&mut self, default: usize, max: usize) -> std::result::Result<usize, Invalid> {
        let asked = self.parsed::<usize>("limit", "a number")?.unwrap_or(default);
        match asked {
            1.. if asked <= max => Ok(asked),
            _ => Err(Invalid::new("limit", format!("must be between 1 and {max}"))),
        }
    }
}

fn decoded(text: &str) -> Result<String> {
    let spaced = text.replace('+', " ");
    let bytes = percent_decode_str(&spaced).decode_utf8().map(|text| text.into_owned());
    bytes.map_err(|_| Error::malformed("the query is not UTF-8"))
}

/// A moment as RFC 3339 writes it.
pub fn time(field: &str, text: &str) -> std::result::Result<Time, Invalid> {
    let bad = |_| Invalid::new(field, format!("'{text}' is not a moment; write it like 2030-01-31T12:00:00Z"));
    Ok(Time(text.parse::<jiff::Timestamp>().map_err(bad)?.as_millisecond()))
}

/// A whole JSON body.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        must_be(request.headers(), "application/json")?;
        read(&body(request, MAX_BODY).await?).map(Self)
    }
}

/// The same where everything in it may be left out, and so may the body.
pub struct MaybeJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJson<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        let typed = must_be(request.headers(), "application/json");
        let bytes = body(request, MAX_BODY).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        typed?;
        read(&bytes).map(Self)
    }
}

/// A body that carries jobs, as it came.
pub struct JobsBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for JobsBody {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        must_be(request.headers(), "application/json")?;
        Ok(Self(body(request, MAX_JOBS_BODY).await?))
    }
}

/// Text that is no JSON is malformed; JSON that says something else than it should is invalid.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    read_any::<Object<T>>(bytes).map(|read| read.0).map_err(|invalid| blame(bytes, invalid))
}

pub fn read_any<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, Invalid> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let read = json::read(&mut text)?;
    text.end().map_err(|error| Invalid::new("body", error.to_string()))?;
    Ok(read)
}

/// What is wrong with a body, given what is wrong with what it says.
pub fn blame(bytes: &[u8], invalid: Invalid) -> Error {
    match is_json(bytes) {
        true if invalid.field == "job" => Invalid::new("body", invalid.problem).into(),
        true => invalid.into(),
        false => Error::malformed(format!("the body is not JSON: {}", invalid.problem)),
    }
}

pub fn must_be(headers: &HeaderMap, wanted: &str) -> Result<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    let detail = format!("the content type is '{kind}'; send {wanted}");
    Err(Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

async fn body(request: Request, max: usize) -> Result<Bytes> {
    axum::body::to_bytes(request.into_body(), max).await.map_err(|error| unread(&error, max))
}

/// Why a body could not be read to its end.
pub fn unread(error: &axum::Error, max: usize) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return too_large(max);
        }
        cause = error.source();
    }
    Error::malformed("the body ended early")
}

pub fn too_large(max: usize) -> Error {
    Error::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than the {max} bytes allowed here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_strictly() {
        let args = |query: &str| Args::parse(query).expect("UTF-8");
        assert_eq!(args("a=x%20y+z").text("a"), Ok(Some("x y z".into())));
        assert_eq!(args("a=1&a=2").many("a"), ["1", "2"]);
        assert_eq!(args("a=1&a=2").text("a").map_err(|bad| bad.field), Err("a".into()));
        assert_eq!(args("a=").text("a").map_err(|bad| bad.field), Err("a".into()));
        assert_eq!(args("b").nothing_left().map_err(|bad| bad.field), Err("b".into()));
        assert_eq!(args("limit=0").limit(1, 10).map_err(|bad| bad.field), Err("limit".into()));
        assert_eq!(args("limit=10").limit(1, 10), Ok(10));
        assert_eq!(time("at", "1970-01-01T00:00:01Z"), Ok(Time(1000)));
        assert!(Args::parse("a=%ff").is_err());
    }
}
