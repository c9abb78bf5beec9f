//! How people write lengths of time, sizes and cores.

use bytesize::ByteSize;
use hodei_core::time::Millis;
use serde::{Deserialize, Deserializer, de::Error};

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

pub fn length_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Millis, D::Error> {
    length(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// A setting that may be left out.
pub fn given_length_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Millis>, D::Error> {
    length_field(deserializer).map(Some)
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
    }
}
