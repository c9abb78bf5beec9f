//! What jobs ask of workers and what workers have of it.

use super::jobs::{count, signed};
use crate::v1;
use hodei_core::{
    requirements::{
        Capability, Constraints, Expression, Isolation, Operator, Requirements, Taint, TaintEffect, Toleration,
    },
    spec::Invalid,
    supervise::Sla,
};
use prost::Message;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// They stay in memory for as long as their job or worker does.
const MAX_ITEMS: usize = 64;
const MAX_TEXT: usize = 256;
const MAX_REQUIREMENTS: usize = 4 << 10;

pub fn requirements_from_wire(wire: v1::Requirements) -> Result<Requirements, Invalid> {
    if wire.encoded_len() > MAX_REQUIREMENTS {
        return Err(Invalid::new("requirements", format!("must be at most {MAX_REQUIREMENTS} bytes in all")));
    }
    let number = |field: &str, value: i64| {
        u64::try_from(value).map_err(|_| Invalid::new(format!("requirements.{field}"), "must not be negative"))
    };
    let (cpu_millis, memory_bytes) =
        (number("cpu_millis", wire.cpu_millis)?, number("memory_bytes", wire.memory_bytes)?);
    let (disk_bytes, gpus) = (number("disk_bytes", wire.disk_bytes)?, number("gpus", wire.gpus.into())?);
    let constraints = constraints_from_wire(wire).map_err(|invalid| invalid.within("requirements"))?;
    let constraints = (constraints != Constraints::default()).then(|| Arc::new(constraints));
    Ok(Requirements {
        cpu_millis,
        memory_bytes,
        disk_bytes,
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        constraints,
    })
}

fn constraints_from_wire(wire: v1::Requirements) -> Result<Constraints, Invalid> {
    let mut selector = Vec::new();
    for (i, expression) in bounded("selector", wire.selector)?.into_iter().enumerate() {
        selector.push(expression_from_wire(expression).map_err(|invalid| invalid.within(&format!("selector[{i}]")))?);
    }
    let zone = some_text("zone", &wire.zone)?;
    if wire.zone_required && zone.is_none() {
        return Err(Invalid::new("zone_required", "needs a zone"));
    }
    Ok(Constraints {
        isolation: isolation_from_wire("isolation", &wire.isolation)?,
        capabilities: capabilities_from_wire("capabilities", wire.capabilities)?,
        image: some_text("image", &wire.image)?,
        selector,
        tolerations: tolerations_from_wire(wire.tolerations)?,
        zone,
        zone_required: wire.zone_required,
        provider: some_text("provider", &wire.provider)?,
    })
}

pub fn requirements_to_wire(requirements: &Requirements) -> v1::Requirements {
    let none = Constraints::default();
    let constraints = requirements.constraints.as_deref().unwrap_or(&none);
    let text = |value: &Option<Arc<str>>| value.as_deref().unwrap_or_default().to_owned();
    v1::Requirements {
        cpu_millis: signed(requirements.cpu_millis),
        memory_bytes: signed(requirements.memory_bytes),
        disk_bytes: signed(requirements.disk_bytes),
        gpus: count(requirements.gpus),
        isolation: isolation_to_wire(constraints.isolation),
        capabilities: capabilities_to_wire(&constraints.capabilities),
        image: text(&constraints.image),
        selector: constraints.selector.iter().map(expression_to_wire).collect(),
        tolerations: constraints.tolerations.iter().map(toleration_to_wire).collect(),
        zone: text(&constraints.zone),
        zone_required: constraints.zone_required,
        provider: text(&constraints.provider),
    }
}

fn expression_from_wire(wire: v1::LabelExpression) -> Result<Expression, Invalid> {
    let operator = Operator::parse(&wire.operator).ok_or_else(|| {
        let problem = format!("'{}' is not an operator; use In, NotIn, Exists or DoesNotExist", wire.operator);
        Invalid::new("operator", problem)
    })?;
    match (operator, wire.values.is_empty()) {
        (Operator::In | Operator::NotIn, true) => return Err(Invalid::new("values", "In and NotIn need some")),
        (Operator::Exists | Operator::DoesNotExist, false) => {
            return Err(Invalid::new("values", "Exists and DoesNotExist have none"));
        }
        _ => {}
    }
    let values = bounded("values", wire.values)?.iter().map(|value| text("values", value)).collect::<Result<_, _>>()?;
    Ok(Expression { key: name("key", &wire.key)?, operator, values })
}

fn expression_to_wire(expression: &Expression) -> v1::LabelExpression {
    v1::LabelExpression {
        key: expression.key.to_string(),
        operator: expression.operator.name().to_owned(),
        values: expression.values.iter().map(ToString::to_string).collect(),
    }
}

fn tolerations_from_wire(wire: Vec<v1::Toleration>) -> Result<Vec<Toleration>, Invalid> {
    let one = |wire: &v1::Toleration| {
        let part = |field: &str, value: &Option<String>| value.as_deref().map(|value| text(field, value)).transpose();
        Ok(Toleration { key: part("tolerations.key", &wire.key)?, value: part("tolerations.value", &wire.value)? })
    };
    bounded("tolerations", wire)?.iter().map(one).collect()
}

fn toleration_to_wire(toleration: &Toleration) -> v1::Toleration {
    let part = |value: &Option<Arc<str>>| value.as_ref().map(ToString::to_string);
    v1::Toleration { key: part(&toleration.key), value: part(&toleration.value) }
}

pub fn isolation_from_wire(field: &str, value: &str) -> Result<Isolation, Invalid> {
    let unknown = || Invalid::new(field, format!("'{value}' is not an isolation; use process, container or vm"));
    if value.is_empty() { Ok(Isolation::default()) } else { Isolation::parse(value).ok_or_else(unknown) }
}

pub fn isolation_to_wire(isolation: Isolation) -> String {
    if isolation == Isolation::default() { String::new() } else { isolation.name().to_owned() }
}

/// The default when it is empty.
pub fn sla_from_wire(field: &str, value: &str) -> Result<Sla, Invalid> {
    if value.is_empty() {
        Ok(Sla::default())
    } else {
        Sla::parse(value).map_err(|error| Invalid::new(field, error.to_string()))
    }
}

pub fn capabilities_from_wire(field: &str, wire: Vec<v1::Capability>) -> Result<Vec<Capability>, Invalid> {
    let one = |wire: v1::Capability| {
        Ok(Capability { name: name(&format!("{field}.name"), &wire.name)?, parameters: map(field, wire.parameters)? })
    };
    bounded(field, wire)?.into_iter().map(one).collect()
}

pub fn capabilities_to_wire(capabilities: &[Capability]) -> Vec<v1::Capability> {
    let one = |capability: &Capability| v1::Capability {
        name: capability.name.to_string(),
        parameters: map_to_wire(&capability.parameters),
    };
    capabilities.iter().map(one).collect()
}

pub fn taints_from_wire(field: &str, wire: Vec<v1::Taint>) -> Result<Vec<Taint>, Invalid> {
    let effect = |value: &str| {
        let unknown = || format!("'{value}' is not an effect; use NoSchedule or PreferNoSchedule");
        let known = if value.is_empty() { Some(TaintEffect::default()) } else { TaintEffect::parse(value) };
        known.ok_or_else(|| Invalid::new(format!("{field}.effect"), unknown()))
    };
    let one = |wire: &v1::Taint| {
        Ok(Taint {
            key: name(&format!("{field}.key"), &wire.key)?,
            value: text(&format!("{field}.value"), &wire.value)?,
            effect: effect(&wire.effect)?,
        })
    };
    bounded(field, wire)?.iter().map(one).collect()
}

pub fn taints_to_wire(taints: &[Taint]) -> Vec<v1::Taint> {
    let one = |taint: &Taint| v1::Taint {
        key: taint.key.to_string(),
        value: taint.value.to_string(),
        effect: taint.effect.name().to_owned(),
    };
    taints.iter().map(one).collect()
}

pub fn map(field: &str, wire: HashMap<String, String>) -> Result<BTreeMap<Arc<str>, Arc<str>>, Invalid> {
    if wire.len() > MAX_ITEMS {
        return Err(Invalid::new(field, format!("must be at most {MAX_ITEMS}")));
    }
    wire.iter().map(|(key, value)| Ok((name(field, key)?, text(field, value)?))).collect()
}

pub fn map_to_wire(map: &BTreeMap<Arc<str>, Arc<str>>) -> HashMap<String, String> {
    map.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn bounded<T>(field: &str, items: Vec<T>) -> Result<Vec<T>, Invalid> {
    if items.len() > MAX_ITEMS {
        return Err(Invalid::new(field, format!("must be at most {MAX_ITEMS}")));
    }
    Ok(items)
}

fn text(field: &str, value: &str) -> Result<Arc<str>, Invalid> {
    if value.len() > MAX_TEXT || value.chars().any(char::is_control) {
        return Err(Invalid::new(field, format!("must be one line of at most {MAX_TEXT} bytes")));
    }
    Ok(value.into())
}

fn name(field: &str, value: &str) -> Result<Arc<str>, Invalid> {
    if value.is_empty() {
        return Err(Invalid::new(field, "must not be empty"));
    }
    text(field, value)
}

pub fn some_text(field: &str, value: &str) -> Result<Option<Arc<str>>, Invalid> {
    if value.is_empty() { Ok(None) } else { text(field, value).map(Some) }
}
