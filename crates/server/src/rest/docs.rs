//! The document that describes all of this, and a page to read it on.

use super::{problem::Details, routes};
use axum::{
    http::header,
    response::{Html, IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::LazyLock;
use utoipa::{
    ToSchema,
    openapi::{InfoBuilder, OpenApi, tag::TagBuilder},
};

const PAGE: &str = include_str!("docs.html");
const WORDS: &str = "Jobs, queues, dead letters, workers, logs and events of a Hodei server.\n\n\
    Moments are RFC 3339, lengths are words such as `5m` or milliseconds in a field that ends in `_ms`. A field that does not \
    apply is left out; no answer has a null. Fields and parameters that are not known are refused. Listings come in pages: \
    `next_page_token` of one is `page_token` of the next. Errors are `application/problem+json` (RFC 9457).";
const TAGS: [(&str, &str); 9] = [
    ("jobs", "Submitting work, and seeing what became of it."),
    ("logs", "What jobs print."),
    ("events", "What happens, as it is committed."),
    ("queues", "Queues exist with their first job; they can be paused and limited."),
    ("schedules", "Jobs by the clock. A schedule is named by its id or by its name."),
    ("dead letters", "Jobs that failed for good."),
    ("workers", "Those who run the jobs."),
    ("webhooks", "What was told to whom when jobs ended."),
    ("health", "For probes."),
];

const PROBES: [&str; 3] = ["/health", "/live", "/ready"];

/// The document, as it is served. It is made when it is first asked for.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| written(routes::document()));

fn written(mut document: OpenApi) -> Bytes {
    document.info =
        InfoBuilder::new().title("Hodei").version(env!("CARGO_PKG_VERSION")).description(Some(WORDS)).build();
    let tags = TAGS.map(|(name, words)| TagBuilder::new().name(name).description(Some(words)).build());
    document.tags = Some(tags.to_vec());
    let mut schemas = Vec::new();
    <Details as ToSchema>::schemas(&mut schemas);
    schemas.push((<Details as ToSchema>::name().into_owned(), <Details as utoipa::PartialSchema>::schema()));
    document.components.get_or_insert_default().schemas.extend(schemas);
    let mut document = serde_json::to_value(document).unwrap_or_default();
    refine(&mut document);
    guard(&mut document);
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// All but the probes ask for a token.
fn guard(document: &mut Value) {
    document["components"]["securitySchemes"]["token"] = json!({
        "type": "http",
        "scheme": "bearer",
        "description": "An API token, from `hodei token create api`."
    });
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let guarded = paths.filter(|(path, _)| !PROBES.iter().any(|probe| path.ends_with(probe)));
    for operation in guarded.filter_map(|(_, item)| item.as_object_mut()).flat_map(|item| item.values_mut()) {
        operation["security"] = json!([{ "token": [] }]);
    }
}

/// What the types cannot say: a job that is submitted runs one thing, and a batch has at least one job.
fn refine(document: &mut Value) {
    let submitted = json!({ "$ref": "#/components/schemas/SubmittedJob" });
    let body = &mut document["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]["application/json"];
    body["schema"] = submitted.clone();
    body["example"] =
        json!({ "task": { "type": "email.send", "payload": { "to": "ana@example.com" } }, "priority": "high" });
    for operation in operations(document) {
        let Some(content) = operation.pointer_mut("/requestBody/content/application~1json/schema") else { continue };
        // A body that may be left out is an object when it is there.
        let body = content["oneOf"].as_array().and_then(|two| two.iter().find(|one| one["type"] != "null").cloned());
        if let (Some(body), true) = (body, content["oneOf"][0]["type"] == "null") {
            *content = body;
            operation["requestBody"]["required"] = json!(false);
        }
    }
    // Lines are no JSON value that a schema could speak of.
    document["paths"]["/api/v1/jobs/bulk"]["post"]["requestBody"]["content"]["application/x-ndjson"]["schema"] =
        json!({});
    let work = ["task", "shell", "script"].map(|kind| json!({ "required": [kind] }));
    let schemas = &mut document["components"]["schemas"];
    schemas["SubmittedJob"] = json!({
        "description": "A job to submit: it runs one of a task, a shell command and a script.",
        "allOf": [{ "$ref": "#/components/schemas/JobSpec" }, { "oneOf": work }]
    });
    let jobs = json!({ "type": "array", "items": submitted, "minItems": 1, "maxItems": 10_000 });
    schemas["Batch"]["properties"]["jobs"] = jobs.clone();
    let body = &mut document["paths"]["/api/v1/jobs/batch"]["post"]["requestBody"]["content"]["application/json"];
    body["schema"] = json!({ "oneOf": [{ "$ref": "#/components/schemas/Batch" }, jobs] });
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    paths.filter_map(Value::as_object_mut).flat_map(|item| item.values_mut())
}

pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone()).into_response()
}

pub async fn page() -> Html<&'static str> {
    Html(PAGE)
}
