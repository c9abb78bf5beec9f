//! A server process under fire.

use crate::engine::Plan;
use std::path::Path;

pub const NAME: &str = "live";

pub fn run(_: &Path, _: Plan) -> anyhow::Result<String> {
    Ok(String::new())
}
