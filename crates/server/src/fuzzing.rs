//! Text from outside that the services take apart by themselves, as fuzzing reaches it.

use crate::{
    calls::{log_position, log_token, page_size, page_token},
    events::EventId,
    secrets,
};
use hodei_core::spec::Invalid;

/// A page of jobs.
pub fn page(size: i32, token: &str) -> Result<(), Invalid> {
    page_size(size, 1, 1000)?;
    page_token(token).map(drop)
}

/// A page of a log.
pub fn log_page(size: i32, token: &str) -> Result<(), Invalid> {
    page_size(size, 1, 1000)?;
    let position = log_position(token)?;
    let again = log_position(&log_token(position));
    assert_eq!(again, Ok(position), "a token leads to where it came from");
    Ok(())
}

/// The id of an event.
pub fn event(text: &str) -> Result<(), Invalid> {
    let id: EventId = text.parse()?;
    assert_eq!(id.to_string().parse(), Ok(id), "an id leads to where it came from");
    Ok(())
}

pub fn is_credential(text: &str) -> bool {
    secrets::claimed_worker(text).is_some()
}
