//! Errors as RFC 9457 has them.

use crate::calls::Problem;
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hodei_core::spec::Invalid;
use serde::Serialize;
use utoipa::ToSchema;

pub const CONTENT_TYPE: &str = "application/problem+json";
/// When to come back, in seconds.
const LATER: u32 = 1;

/// Why a request was not done (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Details {
    /// Names the kind of problem; the same kind always has the same name.
    #[schema(example = "urn:hodei:problem:invalid")]
    pub r#type: String,
    pub title: String,
    pub status: u16,
    /// What is wrong with this request, and what would not be.
    pub detail: String,
    /// The field of the body or the parameter that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The header `x-request-id` of the answer; name it when asking for help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// An answer that is an error. Its body is written where the request's id is known: see [`finish`].
#[derive(Debug)]
pub struct Error(Box<Details>);

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let (kind, title) = kind(status);
        Self(Box::new(Details {
            r#type: format!("urn:hodei:problem:{kind}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            request_id: None,
        }))
    }

    /// Text that is not what its content type says.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub fn details(&self) -> &Details {
        &self.0
    }
}

fn kind(status: StatusCode) -> (&'static str, &'static str) {
    match status {
        StatusCode::BAD_REQUEST => ("malformed", "The request cannot be read"),
        StatusCode::UNAUTHORIZED => ("unauthenticated", "No valid token"),
        StatusCode::FORBIDDEN => ("forbidden", "The token's role does not allow this"),
        StatusCode::NOT_FOUND => ("not-found", "There is no such thing"),
        StatusCode::METHOD_NOT_ALLOWED => ("method-not-allowed", "This path has no such method"),
        StatusCode::NOT_ACCEPTABLE => ("not-acceptable", "No form of the answer that you accept"),
        StatusCode::CONFLICT => ("conflict", "This makes no sense as things are now"),
        StatusCode::GONE => ("gone", "It is not kept any more"),
        StatusCode::PAYLOAD_TOO_LARGE => ("too-large", "The request is too large"),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ("unsupported-media-type", "The body has another content type"),
        StatusCode::UNPROCESSABLE_ENTITY => ("invalid", "A field is not valid"),
        StatusCode::TOO_MANY_REQUESTS => ("exhausted", "Too much of it"),
        StatusCode::SERVICE_UNAVAILABLE => ("unavailable", "The server cannot do this now"),
        _ => ("internal", "The server failed"),
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, invalid.to_string());
        error.0.field = Some(invalid.field);
        error
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        let status = match problem {
            Problem::Invalid(invalid) => return invalid.into(),
            Problem::NotFound(_) => StatusCode::NOT_FOUND,
            Problem::Exists(_) | Problem::Precondition(_) => StatusCode::CONFLICT,
            Problem::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Problem::Exhausted(_) => StatusCode::TOO_MANY_REQUESTS,
            Problem::Gone(_) => StatusCode::GONE,
            Problem::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, problem.to_string())
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(*self.0);
        response
    }
}

/// Gives an error its body, whoever made it: what axum refuses by itself becomes a problem, too.
pub async fn finish(response: Response, request_id: &str) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let mut details = match parts.extensions.remove::<Details>() {
        Some(details) => details,
        None if parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == CONTENT_TYPE) => {
            // The door's own words, in our form.
            let said: serde_json::Value = serde_json::from_str(&said(body).await).unwrap_or_default();
            *Error::new(status, said["detail"].as_str().unwrap_or_default()).0
        }
        None => *Error::new(status, said(body).await).0,
    };
    details.request_id = Some(request_id.to_owned());
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    parts.headers.remove(header::CONTENT_LENGTH);
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        parts.headers.entry(header::RETRY_AFTER).or_insert(HeaderValue::from(LATER));
    }
    let body = serde_json::to_vec(&details).unwrap_or_default();
    Response::from_parts(parts, Body::from(body))
}

/// The words of whoever refused the request.
async fn said(body: Body) -> String {
    const LONGEST: usize = 1024;
    let bytes = axum::body::to_bytes(body, LONGEST).await.unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
