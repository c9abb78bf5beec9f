//! The doors, each with what good input for it looks like.

mod files;
mod requests;
mod settings;
mod streams;

use crate::engine::Target;

/// All of them.
pub fn all() -> Vec<Box<dyn Target>> {
    vec![
        Box::new(streams::FromWorker::new()),
        Box::new(streams::ToWorker::new()),
        Box::new(requests::Requests::new()),
        Box::new(requests::Tokens),
        Box::new(files::Logs),
        Box::new(files::Records),
        Box::new(files::Spool::new()),
        Box::new(files::Guardian),
        Box::new(settings::Configuration),
        Box::new(settings::Values),
    ]
}
