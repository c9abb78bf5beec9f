//! The door of the HTTP listener.

use super::{Denied, Peer, Visit, actions, bearer};
use crate::{engine::Engine, listen::ConnectedPeer};
use axum::{
    Json,
    extract::{ConnectInfo, MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

/// Checks every request of a router: `Router::layer(from_fn_with_state(engine, http_layer))`. Handlers find a [`Visit`] in the
/// extensions of the request, and an [`super::Actor`] where a role is needed.
pub async fn layer(State(engine): State<Engine>, mut request: Request, next: Next) -> Response {
    let connected = request.extensions().get::<ConnectInfo<ConnectedPeer>>();
    let peer = connected.map_or(Peer::Local, |ConnectInfo(ConnectedPeer(address))| Peer::from(*address));
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let action = route.and_then(|route| actions::of_route(request.method().as_str(), route));
    let Some(action) = action else {
        let allowed = actions::methods_of(route.unwrap_or_default());
        return if allowed.is_empty() { Denied::NoSuchAction.into_response() } else { not_allowed(&allowed) };
    };
    let credential = bearer(request.headers().get(header::AUTHORIZATION));
    match engine.shared().access.admit(action, peer, credential) {
        Ok(actor) => {
            let extensions = request.extensions_mut();
            extensions.insert(Visit { peer, action: action.name });
            actor.map(|actor| extensions.insert(actor));
            next.run(request).await
        }
        Err(denied) => denied.into_response(),
    }
}

fn not_allowed(allowed: &str) -> Response {
    let detail = format!("this can be asked with {allowed}");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// An error as RFC 9457 wants it.
fn problem(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or_default();
    let body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    let mut response = (status, Json(body)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let status = match self {
            Denied::Missing | Denied::Unknown | Denied::Expired(_) | Denied::Revoked(_) | Denied::NoCertificate => {
                StatusCode::UNAUTHORIZED
            }
            Denied::Role { .. } => StatusCode::FORBIDDEN,
            Denied::TooMany { .. } => StatusCode::TOO_MANY_REQUESTS,
            Denied::NoSuchAction => StatusCode::NOT_FOUND,
        };
        let mut response = problem(status, &self.to_string());
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Denied::TooMany { wait, .. } = self {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.0.div_ceil(1000)));
        }
        response
    }
}
