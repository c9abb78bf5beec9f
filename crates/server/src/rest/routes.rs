//! The table of all routes: what each is called, which handler it has, which errors it may answer.

use super::{
    PREFIX, Rest, dead_letters, events, health, jobs, logs,
    problem::{self, Details, Error},
    providers, queues, scheduler, schedules, submit, templates, webhooks, workers,
};
use axum::{
    Router,
    extract::{MatchedPath, Request},
    http::{Method, StatusCode, header},
};
use std::collections::HashMap;
use utoipa::openapi::{
    Content, OpenApi, RefOr, Response,
    path::{Operation, PathItem},
    response::ResponseBuilder,
    schema::Ref,
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouter},
    routes,
};

/// Makes a route and its description, which is a hundred times as large.
type Make = fn() -> UtoipaMethodRouter<Rest>;

/// Each route by the name of what it does, which is what roles and the audit log speak of.
fn table() -> impl Iterator<Item = (&'static str, Make)> {
    let routes: Vec<(&str, Make)> = vec![
        ("jobs.submit", || routes!(submit::submit)),
        ("jobs.submit_batch", || routes!(submit::batch)),
        ("jobs.submit_bulk", || routes!(submit::bulk)),
        ("jobs.list", || routes!(jobs::list)),
        ("jobs.cancel_many", || routes!(jobs::cancel_many)),
        ("jobs.get", || routes!(jobs::get)),
        ("jobs.cancel", || routes!(jobs::cancel)),
        ("jobs.retry", || routes!(jobs::retry)),
        ("jobs.resume", || routes!(jobs::resume)),
        ("jobs.assign", || routes!(scheduler::assign)),
        ("jobs.explain", || routes!(scheduler::explain)),
        ("jobs.logs", || routes!(logs::page)),
        ("jobs.follow_logs", || routes!(logs::stream)),
        ("jobs.follow", || routes!(events::of_job)),
        ("events.follow", || routes!(events::all)),
        ("dead_letters.list", || routes!(dead_letters::list)),
        ("dead_letters.stats", || routes!(dead_letters::stats)),
        ("dead_letters.replay_many", || routes!(dead_letters::replay_many)),
        ("dead_letters.discard_many", || routes!(dead_letters::discard_many)),
        ("dead_letters.get", || routes!(dead_letters::get)),
        ("dead_letters.discard", || routes!(dead_letters::discard)),
        ("dead_letters.replay", || routes!(dead_letters::replay)),
        ("queues.list", || routes!(queues::list)),
        ("queues.get", || routes!(queues::get)),
        ("queues.pause", || routes!(queues::pause)),
        ("queues.resume", || routes!(queues::resume)),
        ("queues.configure", || routes!(queues::configure)),
        ("scheduler.get", || routes!(scheduler::get)),
        ("scheduler.configure", || routes!(scheduler::configure)),
        ("scheduler.preview", || routes!(scheduler::preview)),
        ("scheduler.workers", || routes!(scheduler::workers)),
        ("schedules.create", || routes!(schedules::create)),
        ("schedules.list", || routes!(schedules::list)),
        ("schedules.preview_spec", || routes!(schedules::preview_spec)),
        ("schedules.get", || routes!(schedules::get)),
        ("schedules.update", || routes!(schedules::update)),
        ("schedules.delete", || routes!(schedules::delete)),
        ("schedules.enable", || routes!(schedules::enable)),
        ("schedules.disable", || routes!(schedules::disable)),
        ("schedules.trigger", || routes!(schedules::trigger)),
        ("schedules.preview", || routes!(schedules::preview)),
        ("schedules.backfill", || routes!(schedules::backfill)),
        ("workers.list", || routes!(workers::list)),
        ("workers.create_token", || routes!(workers::create_token)),
        ("workers.get", || routes!(workers::get)),
        ("workers.drain", || routes!(workers::drain)),
        ("workers.restart", || routes!(workers::restart)),
        ("providers.list", || routes!(providers::list)),
        ("providers.add", || routes!(providers::add)),
        ("providers.get", || routes!(providers::get)),
        ("providers.put", || routes!(providers::put)),
        ("providers.remove", || routes!(providers::remove)),
        ("providers.check", || routes!(providers::check)),
        ("providers.enable", || routes!(providers::enable)),
        ("providers.disable", || routes!(providers::disable)),
        ("templates.list", || routes!(templates::list)),
        ("templates.get", || routes!(templates::get)),
        ("templates.put", || routes!(templates::put)),
        ("templates.remove", || routes!(templates::remove)),
        ("templates.pool", || routes!(templates::pool)),
        ("templates.restart", || routes!(templates::restart)),
        ("webhooks.list", || routes!(webhooks::list)),
        ("webhooks.redeliver", || routes!(webhooks::redeliver)),
        ("health.whole", || routes!(health::whole)),
        ("health.live", || routes!(health::live)),
        ("health.ready", || routes!(health::ready)),
    ];
    routes.into_iter()
}

/// The routes, and what is known of them. Their descriptions are dropped one by one: together they would take more memory than
/// the rest of a server.
pub fn served() -> (Router<Rest>, Known) {
    let (mut router, mut known) = (Router::new(), Known::default());
    for (action, make) in table() {
        let (_, paths, methods) = described(action, make());
        for (path, item) in &paths.paths {
            known.add(path, item);
            router = router.route(path, methods.clone());
        }
    }
    (Router::new().nest(PREFIX, router), known)
}

/// What describes them all.
pub fn document() -> OpenApi {
    let all = table().fold(OpenApiRouter::new(), |all, (action, make)| all.routes(described(action, make())));
    OpenApiRouter::new().nest(PREFIX, all).into_openapi()
}

fn described(action: &str, (schemas, mut paths, router): UtoipaMethodRouter<Rest>) -> UtoipaMethodRouter<Rest> {
    for (path, item) in &mut paths.paths {
        let has_id = path.contains('{');
        for (_, operation) in operations_mut(item) {
            operation.operation_id = Some(action.to_owned());
            may_fail(operation, has_id);
        }
    }
    (schemas, paths, router)
}

fn operations_mut(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let PathItem { get, put, post, delete, .. } = item;
    let all = [(Method::GET, get), (Method::PUT, put), (Method::POST, post), (Method::DELETE, delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

fn operations(item: &PathItem) -> impl Iterator<Item = (Method, &Operation)> {
    let PathItem { get, put, post, delete, .. } = item;
    let all = [(Method::GET, get), (Method::PUT, put), (Method::POST, post), (Method::DELETE, delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

/// The errors that follow from what an operation takes; those of its own it names itself.
fn may_fail(operation: &mut Operation, has_id: bool) {
    let is_health = operation.operation_id.as_ref().is_some_and(|action| action.starts_with("health."));
    let mut errors = vec![
        (StatusCode::BAD_REQUEST, "The query, the path or the body cannot be read"),
        (StatusCode::NOT_ACCEPTABLE, "The answer has no form that the header `accept` allows"),
        (StatusCode::UNPROCESSABLE_ENTITY, "A field or a parameter is not valid; `field` names it"),
        (StatusCode::TOO_MANY_REQUESTS, "Too much of it; the header `retry-after` says when to come back"),
        (StatusCode::INTERNAL_SERVER_ERROR, "The server failed"),
        (StatusCode::SERVICE_UNAVAILABLE, "Not now; the header `retry-after` says when to come back"),
    ];
    if !is_health {
        errors.push((StatusCode::UNAUTHORIZED, "No valid token"));
        errors.push((StatusCode::FORBIDDEN, "The token's role does not allow this"));
    }
    if has_id {
        errors.push((StatusCode::NOT_FOUND, "There is no such thing"));
    }
    if operation.request_body.is_some() {
        errors.push((StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"));
        errors.push((StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body has another content type"));
    }
    for (status, description) in errors {
        let answer = operation.responses.responses.entry(status.as_str().to_owned());
        answer.or_insert_with(|| RefOr::T(refusal(description)));
    }
    for (status, response) in &mut operation.responses.responses {
        if let (true, RefOr::T(response)) = (status.starts_with(['4', '5']), response) {
            response.content.entry(problem::CONTENT_TYPE.to_owned()).or_insert_with(problem_content);
        }
    }
}

fn refusal(description: &str) -> Response {
    ResponseBuilder::new().description(description).content(problem::CONTENT_TYPE, problem_content()).build()
}

fn problem_content() -> Content {
    Content::new(Some(Ref::from_schema_name(<Details as utoipa::ToSchema>::name())))
}

/// The forms that the answers of each route may have.
#[derive(Default)]
pub struct Known(HashMap<(Method, String), Vec<String>>);

impl Known {
    fn add(&mut self, path: &str, item: &PathItem) {
        for (method, operation) in operations(item) {
            self.0.insert((method, format!("{PREFIX}{path}")), forms(operation));
        }
    }

    /// Whether the caller takes any form that the answer may have.
    pub fn acceptable(&self, request: &Request) -> Result<(), Error> {
        let Some(path) = request.extensions().get::<MatchedPath>() else { return Ok(()) };
        let method = if request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
        let Some(forms) = self.0.get(&(method, path.as_str().to_owned())) else { return Ok(()) };
        let mut accepts = request.headers().get_all(header::ACCEPT).iter().peekable();
        if accepts.peek().is_none() || forms.is_empty() {
            return Ok(());
        }
        let words = accepts.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let mut wanted = words.map(|word| word.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        if wanted.any(|wanted| forms.iter().any(|form| covers(&wanted, form))) {
            return Ok(());
        }
        let detail = format!("the answer can be {}, and the header 'accept' allows none of it", forms.join(" or "));
        Err(Error::new(StatusCode::NOT_ACCEPTABLE, detail))
    }
}

fn covers(wanted: &str, form: &str) -> bool {
    let group = |wanted: &str| wanted.strip_suffix("/*").map(|group| form.starts_with(&format!("{group}/")));
    wanted == "*/*" || wanted == form || group(wanted).unwrap_or(false)
}

/// The content types of an operation's good answers.
fn forms(operation: &Operation) -> Vec<String> {
    let good = operation.responses.responses.iter().filter(|(status, _)| status.starts_with('2'));
    let contents = good.filter_map(|(_, response)| match response {
        RefOr::T(response) => Some(response.content.keys().cloned()),
        RefOr::Ref(_) => None,
    });
    contents.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_route_has_a_name_of_its_own_and_says_what_may_come() {
        let document = document();
        let mut names = HashSet::new();
        for (path, item) in &document.paths.paths {
            for (method, operation) in operations(item) {
                let name = operation.operation_id.clone().unwrap_or_default();
                assert!(name.contains('.') && names.insert(name), "{method} {path}");
                assert!(operation.responses.responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
                assert!(operation.summary.is_some(), "{method} {path} has no words");
            }
        }
    }

    #[test]
    fn what_a_caller_accepts_is_compared_by_kind() {
        assert!(covers("*/*", "application/json"));
        assert!(covers("application/*", "application/json"));
        assert!(!covers("text/*", "application/json"));
        assert!(!covers("app/*", "application/json"));
    }
}
