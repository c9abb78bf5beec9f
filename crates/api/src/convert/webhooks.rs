//! Webhooks: where they go and what became of them. Secrets do not come this way.

use crate::v1;
use hodei_core::{
    id::DeliveryId,
    spec::Invalid,
    webhook::{Delivery, DeliveryState, DeliveryTry},
};

pub fn delivery_id(field: &str, text: &str) -> Result<DeliveryId, Invalid> {
    text.parse().map_err(|_| Invalid::new(field, format!("'{text}' is not the id of a delivery (a UUID)")))
}

/// The state that a request names; unspecified for any.
pub fn delivery_state(value: i32) -> Result<v1::DeliveryState, Invalid> {
    v1::DeliveryState::try_from(value).map_err(|_| Invalid::new("state", format!("{value} is not a state")))
}

pub fn delivery_to_wire(delivery: &Delivery) -> v1::Delivery {
    let state = match delivery.state {
        DeliveryState::Pending { .. } => v1::DeliveryState::Pending,
        DeliveryState::Delivered { .. } => v1::DeliveryState::Delivered,
        DeliveryState::Failed { .. } => v1::DeliveryState::Failed,
    };
    v1::Delivery {
        id: delivery.id.to_string(),
        job_id: delivery.job.to_string(),
        event: format!("job.{}", delivery.event.name()),
        url: shown(&delivery.to.url),
        state: state.into(),
        created_at_ms: delivery.created_at.0,
        next_at_ms: delivery.due().map_or(0, |at| at.0),
        tries: delivery.tries.iter().map(try_to_wire).collect(),
    }
}

fn try_to_wire(one: &DeliveryTry) -> v1::DeliveryTry {
    v1::DeliveryTry {
        at_ms: one.at.0,
        status: one.status.map_or(0, i32::from),
        error: one.error.clone(),
        took_ms: i64::try_from(one.took.0).unwrap_or(i64::MAX),
    }
}

/// An address for people: without the parts that credentials are put into.
pub fn shown(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = plain.split_once("://") else { return String::new() };
    let end = rest.find(['/', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn addresses_are_shown_without_credentials() {
        let cases = [
            ("https://example.com/hook", "https://example.com/hook"),
            ("https://example.com/hook?token=1#x", "https://example.com/hook"),
            ("https://user:pass@example.com:8443/a/b?c", "https://example.com:8443/a/b"),
            ("https://user:p@ss@example.com", "https://example.com"),
            ("http://example.com?a@b/c", "http://example.com"),
            ("http://example.com/a@b", "http://example.com/a@b"),
        ];
        for (url, expected) in cases {
            assert_eq!(shown(url), expected);
        }
    }
}
