//! What went wrong with an engine, by what would help.

use crate::ProviderError;
use bollard::errors::Error;
use hodei_core::provider::ErrorClass;

/// What the engine was asked for when it failed; the same words mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Image,
    Container,
}

const NO_ROOM: [&str; 4] = ["no space left", "cannot allocate memory", "not enough memory", "too many open files"];
const NO_IMAGE: [&str; 8] = [
    "no such image",
    "manifest unknown",
    "manifest for",
    "not found",
    "does not exist",
    "invalid reference",
    "no matching manifest",
    // Of the registry that the name of the image begins with.
    "no such host",
];
const DENIED: [&str; 3] = ["unauthorized", "authentication required", "no basic auth credentials"];
/// Between the engine and a registry, for now.
const CUT_OFF: [&str; 5] =
    ["connection refused", "timeout", "network is unreachable", "temporary failure", "server misbehaving"];
/// The kernel's words when the agent cannot be run in an image.
const CANNOT_RUN: [&str; 2] = ["exec format error", "no such file or directory"];

pub(super) fn classify(asked: Asked, error: &Error) -> ProviderError {
    let message = match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        Error::RequestTimeoutError => "the engine does not answer".to_owned(),
        error => chain(error),
    };
    ProviderError { class: class(asked, error, &message.to_lowercase()), message }
}

fn class(asked: Asked, error: &Error, said: &str) -> ErrorClass {
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match error {
        Error::RequestTimeoutError
        | Error::HyperResponseError { .. }
        | Error::HyperLegacyError { .. }
        | Error::IOError { .. }
        | Error::SocketNotFoundError(_) => ErrorClass::Unreachable,
        Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. } if says(&NO_ROOM) => {
            ErrorClass::Capacity
        }
        Error::DockerResponseServerError { status_code: 401 | 403, .. } => ErrorClass::Auth,
        Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. } => match asked {
            // "pull access denied" is what a registry says of an image that it does not have.
            Asked::Image if says(&["pull access denied"]) => ErrorClass::Image,
            Asked::Image if says(&DENIED) => ErrorClass::Auth,
            // The engine answers, and other images may be there: only this one has to wait.
            Asked::Image if says(&CUT_OFF) => ErrorClass::Other,
            Asked::Image if says(&NO_IMAGE) => ErrorClass::Image,
            Asked::Container if says(&["no such image"]) => ErrorClass::Image,
            Asked::Container if says(&["exec"]) && says(&CANNOT_RUN) => ErrorClass::Image,
            _ => ErrorClass::Other,
        },
        _ => ErrorClass::Other,
    }
}

/// With the reasons below it, which is where "connection refused" stands.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        below = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_say_is_known() {
        let answered =
            |status_code, message: &str| Error::DockerResponseServerError { status_code, message: message.into() };
        let streamed = |error: &str| Error::DockerStreamError { error: error.into() };
        let cases = [
            (Asked::Image, answered(404, "No such image: none:1"), ErrorClass::Image),
            (
                Asked::Image,
                answered(404, "manifest for busybox:none not found: manifest unknown: manifest unknown"),
                ErrorClass::Image,
            ),
            (
                Asked::Image,
                answered(
                    404,
                    "pull access denied for none, repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
                ),
                ErrorClass::Image,
            ),
            (
                Asked::Image,
                streamed("no matching manifest for linux/amd64 in the manifest list entries"),
                ErrorClass::Image,
            ),
            (
                Asked::Image,
                answered(500, "Get \"https://registry.example/v2/\": dial tcp: lookup registry.example: no such host"),
                ErrorClass::Image,
            ),
            (
                Asked::Image,
                answered(500, "Get \"http://127.0.0.1:1/v2/\": dial tcp 127.0.0.1:1: connect: connection refused"),
                ErrorClass::Other,
            ),
            (
                Asked::Image,
                answered(500, "Head \"https://r/v2/a/manifests/1\": no basic auth credentials"),
                ErrorClass::Auth,
            ),
            (
                Asked::Image,
                streamed("failed to register layer: write /x: no space left on device"),
                ErrorClass::Capacity,
            ),
            (Asked::Container, answered(403, "authorization denied by plugin"), ErrorClass::Auth),
            (Asked::Container, answered(500, "mkdir /x: no space left on device"), ErrorClass::Capacity),
            (Asked::Container, answered(404, "network none2 not found"), ErrorClass::Other),
            (
                Asked::Container,
                answered(400, "OCI runtime create failed: exec: \"/.hodei/agent\": exec format error: unknown"),
                ErrorClass::Image,
            ),
            (Asked::Container, Error::RequestTimeoutError, ErrorClass::Unreachable),
        ];
        for (asked, error, class) in cases {
            assert_eq!(classify(asked, &error).class, class, "{error}");
        }
    }
}
