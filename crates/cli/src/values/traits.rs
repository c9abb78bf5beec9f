//! How people write what workers are and what jobs ask of them.

use hodei_core::requirements::{Capability, Expression, Isolation, Operator, Taint, TaintEffect, Toleration};
use std::{collections::BTreeMap, sync::Arc};

/// "KEY=VALUE".
pub fn label(text: &str) -> Result<(Arc<str>, Arc<str>), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err("write it like disk=ssd".into()),
    }
}

/// "KEY", "KEY=VALUE", and either with ":EFFECT".
pub fn taint(text: &str) -> Result<Taint, String> {
    let (taint, effect) = match text.rsplit_once(':') {
        Some((taint, effect)) => {
            let unknown = || format!("'{effect}' is not an effect; use NoSchedule or PreferNoSchedule");
            (taint, TaintEffect::parse(effect).ok_or_else(unknown)?)
        }
        None => (text, TaintEffect::default()),
    };
    let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
    if key.is_empty() {
        return Err("write it like gpu, gpu=yes or gpu=yes:PreferNoSchedule".into());
    }
    Ok(Taint { key: key.into(), value: value.into(), effect })
}

/// "KEY", "KEY=VALUE", or "*" for any taint.
pub fn toleration(text: &str) -> Result<Toleration, String> {
    let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
    match (key, value) {
        ("", _) => Err("write it like gpu, gpu=yes, or * for any taint".into()),
        ("*", None) => Ok(Toleration { key: None, value: None }),
        (key, value) => Ok(Toleration { key: Some(key.into()), value: value.map(Into::into) }),
    }
}

/// "NAME", or "NAME:key=value,key=value".
pub fn capability(text: &str) -> Result<Capability, String> {
    let usage = || "write it like cuda, or cuda:version=12,arch=sm90".to_owned();
    let (name, list) = text.split_once(':').map_or((text, None), |(name, list)| (name, Some(list)));
    let mut parameters = BTreeMap::new();
    for pair in list.into_iter().flat_map(|list| list.split(',')) {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(usage)?;
        parameters.insert(key.into(), value.into());
    }
    if name.is_empty() { Err(usage()) } else { Ok(Capability { name: name.into(), parameters }) }
}

pub fn isolation(text: &str) -> Result<Isolation, String> {
    Isolation::parse(text).ok_or_else(|| "must be process, container or vm".into())
}

/// "key in (a,b)", "key notin (a,b)", "key=value", "key!=value", "key" or "!key".
pub fn selector(text: &str) -> Result<Expression, String> {
    let usage =
        || "write it like 'disk in (ssd,nvme)', 'disk notin (hdd)', disk=ssd, disk!=hdd, disk or !disk".to_owned();
    let text = text.trim();
    let made = |key: &str, operator, values: Vec<Arc<str>>| {
        let key = key.trim();
        let whole = !key.is_empty() && !key.contains(char::is_whitespace);
        if whole { Ok(Expression { key: key.into(), operator, values }) } else { Err(usage()) }
    };
    if let Some(list) = text.strip_suffix(')') {
        let (head, list) = list.split_once('(').ok_or_else(usage)?;
        let values = list.split(',').map(str::trim).filter(|value| !value.is_empty()).map(Arc::from).collect();
        let (key, word) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(usage)?;
        return match word {
            "in" => made(key, Operator::In, values),
            "notin" => made(key, Operator::NotIn, values),
            _ => Err(usage()),
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return made(key, Operator::NotIn, vec![value.trim().into()]);
    }
    if let Some((key, value)) = text.split_once('=') {
        return made(key, Operator::In, vec![value.trim().into()]);
    }
    match text.strip_prefix('!') {
        Some(key) => made(key, Operator::DoesNotExist, Vec::new()),
        None => made(text, Operator::Exists, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_shown_as_it_was_written() {
        for text in ["disk in (ssd, nvme)", "disk notin (hdd, tape)", "disk=ssd", "disk", "!disk"] {
            assert_eq!(selector(text).map(|expression| expression.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(selector("disk != hdd").map(|e| e.to_string()), Ok("disk notin (hdd)".to_owned()));
        for text in ["cuda", "cuda:arch=sm90,version=12"] {
            assert_eq!(capability(text).map(|capability| capability.to_string()), Ok(text.to_owned()));
        }
        for text in ["gpu", "gpu=yes"] {
            assert_eq!(taint(text).map(|taint| taint.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(taint("old:PreferNoSchedule").map(|taint| taint.effect), Ok(TaintEffect::PreferNoSchedule));
        assert_eq!(toleration("*"), Ok(Toleration { key: None, value: None }));
        assert_eq!(toleration("gpu="), Ok(Toleration { key: Some("gpu".into()), value: Some("".into()) }));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for text in ["", "disk of (x)", "a b", "(x)", "in (x)", "=x", "!"] {
            assert!(selector(text).is_err(), "{text}");
        }
        assert!(taint("gpu:Sometimes").is_err() && taint("=x").is_err());
        assert!(capability("cuda:12").is_err() && capability(":a=b").is_err());
        assert!(label("disk").is_err() && label("=x").is_err() && toleration("=x").is_err());
    }
}
