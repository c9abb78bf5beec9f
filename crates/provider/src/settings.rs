//! What an operator wrote about a provider, taken apart name by name: what nobody asked for is refused.

use std::{collections::BTreeMap, str::FromStr};

pub(crate) struct Settings {
    rest: BTreeMap<String, String>,
}

impl Settings {
    pub(crate) fn of(settings: &BTreeMap<String, String>) -> Self {
        Self { rest: settings.clone() }
    }

    /// The setting, if it is there and not empty.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.rest.remove(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn number<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, String> {
        let Some(value) = self.take(name) else { return Ok(default) };
        value.parse().map_err(|_| format!("the setting {name} is a number, not '{value}'"))
    }

    /// All that is known has been taken.
    pub(crate) fn done(self) -> Result<(), String> {
        match self.rest.keys().next() {
            Some(name) => Err(format!("there is no setting {name} for this kind of provider")),
            None => Ok(()),
        }
    }
}
