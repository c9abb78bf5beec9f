//! How people write lengths of time, sizes and cores.

mod traits;

pub use traits::{capability, isolation, label, selector, taint, toleration};

use bytesize::ByteSize;
use hodei_api::v1::Misfire;
use hodei_core::{
    requirements::{Capability, Isolation, Taint},
    spec::Secret,
    time::Millis,
};
use serde::{Deserialize, Deserializer, de::Error};
use std::sync::Arc;

/// A key and its value.
pub type Label = (Arc<str>, Arc<str>);

/// Thousandths of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(pub u64);

/// "500ms", "10s", "5m"; a plain number is seconds.
pub fn length(text: &str) -> Result<Millis, String> {
    let plain = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
    if let Some(seconds) = plain {
        return match seconds >= 0.0 {
            true => Ok(Millis((seconds * 1000.0).round() as u64)),
            false => Err("must not be negative".into()),
        };
    }
    let length = humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 500ms, 10s or 5m"))?;
    Ok(Millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
}

/// "512MiB", "2GB"; a plain number is bytes.
pub fn size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.as_u64()).map_err(|error| format!("{error}; write it like 512MiB or 2GB"))
}

/// "0.5", "2".
pub fn cores(text: &str) -> Result<Cores, String> {
    match text.parse::<f64>() {
        Ok(cores) if (0.0..=100_000.0).contains(&cores) => Ok(Cores((cores * 1000.0).round() as u64)),
        _ => Err("write cores like 0.5 or 2".into()),
    }
}

/// "NAME=VALUE", or "NAME" for the value that it has here.
pub fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the name is missing; write NAME=VALUE".into()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_owned(), value)),
            Err(_) => Err(format!("{text} is not set here; write {text}=VALUE")),
        },
    }
}

/// "KEY=VALUE".
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".into()),
    }
}

/// "/source:/target".
pub fn mount(text: &str) -> Result<(String, String), String> {
    let (source, target) = text.split_once(':').ok_or("write /SOURCE:/TARGET")?;
    Ok((source.to_owned(), target.to_owned()))
}

/// The value of an environment variable, which no error shows.
pub fn secret_variable(name: &str) -> Result<Secret, String> {
    std::env::var(name).map(Secret).map_err(|_| format!("{name} is not set here; it must hold the secret"))
}

/// Starts in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub limit: i32,
    pub period: Millis,
}

/// A new value for a setting, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<T>(pub Option<T>);

fn setting<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Setting<T>, String> {
    if text == "none" { Ok(Setting(None)) } else { parse(text).map(|value| Setting(Some(value))) }
}

/// "100/1m"; "none" for no limit.
pub fn optional_rate(text: &str) -> Result<Setting<Rate>, String> {
    setting(text, rate)
}

fn rate(text: &str) -> Result<Rate, String> {
    let (limit, period) = text.split_once('/').ok_or("write it like 100/1m, or none")?;
    let limit = limit.parse::<i32>().ok().filter(|limit| *limit > 0).ok_or("the number of starts must be 1 or more")?;
    Ok(Rate { limit, period: length(period)? })
}

/// "5"; "none" for no limit.
pub fn optional_count(text: &str) -> Result<Setting<i32>, String> {
    setting(text, |text| match text.parse::<i32>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("must be a number of 1 or more, or none".into()),
    })
}

/// "5m"; "none" for none.
pub fn optional_length(text: &str) -> Result<Setting<Millis>, String> {
    setting(text, length)
}

/// "skip", "fire-once" or "catch-up=N".
pub fn misfire(text: &str) -> Result<(Misfire, i32), String> {
    match (text, text.strip_prefix("catch-up=").map(str::parse::<i32>)) {
        ("skip", _) => Ok((Misfire::Skip, 0)),
        ("fire-once", _) => Ok((Misfire::FireOnce, 0)),
        (_, Some(Ok(most))) if most > 0 => Ok((Misfire::CatchUp, most)),
        _ => Err("write skip, fire-once or catch-up=N, with an N of 1 or more".into()),
    }
}

/// "KEY=LIMIT".
pub fn limit(text: &str) -> Result<(String, i32), String> {
    let (key, limit) = text.rsplit_once('=').ok_or("write it like customer-7=2")?;
    match limit.parse::<i32>() {
        Ok(limit) if limit > 0 && !key.is_empty() => Ok((key.to_owned(), limit)),
        _ => Err("write it like customer-7=2, with a limit of 1 or more".into()),
    }
}

pub fn length_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Millis, D::Error> {
    length(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

pub fn lengths_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Millis>, D::Error> {
    list(deserializer, length)
}

/// A setting that may be left out.
pub fn given_length_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Millis>, D::Error> {
    length_field(deserializer).map(Some)
}

pub fn optional_length_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Millis>, D::Error> {
    optional(deserializer, length)
}

pub fn size_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    size(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

pub fn optional_size_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    optional(deserializer, size)
}

pub fn optional_cores_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cores>, D::Error> {
    optional(deserializer, cores)
}

pub fn isolation_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Isolation, D::Error> {
    isolation(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

pub fn labels_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Label>, D::Error> {
    list(deserializer, label)
}

pub fn taints_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Taint>, D::Error> {
    list(deserializer, taint)
}

pub fn capabilities_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Capability>, D::Error> {
    list(deserializer, capability)
}

fn list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse(text).map_err(D::Error::custom)).collect()
}

fn optional<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "" => Ok(None),
        text => parse(text).map(Some).map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_values_in_many_ways() {
        assert_eq!(length("1.5"), Ok(Millis(1500)));
        assert_eq!(length("250ms"), Ok(Millis(250)));
        assert_eq!(length("2m"), Ok(Millis(120_000)));
        assert!(length("-1").is_err());
        assert!(length("soon").is_err());
        assert_eq!(size("512MiB"), Ok(512 << 20));
        assert_eq!(cores("0.5"), Ok(Cores(500)));
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("=x").is_err());
        assert_eq!(optional_rate("100/1m"), Ok(Setting(Some(Rate { limit: 100, period: Millis(60_000) }))));
        assert_eq!(optional_rate("none"), Ok(Setting(None)));
        assert!(optional_rate("0/1m").is_err() && optional_rate("5").is_err());
        assert_eq!(optional_count("7"), Ok(Setting(Some(7))));
        assert!(optional_count("0").is_err());
        assert_eq!(limit("a=b=2"), Ok(("a=b".into(), 2)));
        assert_eq!(misfire("catch-up=3"), Ok((Misfire::CatchUp, 3)));
        assert!(misfire("catch-up").is_err() && misfire("catch-up=0").is_err());
        assert!(limit("a=0").is_err() && limit("=3").is_err());
    }
}
