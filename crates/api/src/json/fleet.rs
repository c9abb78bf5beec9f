//! Worker templates and providers as people and programs write them in JSON, YAML or TOML.

use super::{Capability, Taint, length};
use crate::v1;
use hodei_core::spec::Invalid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a worker that a provider makes is to be like, and how many of them stand ready. All but the name may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TemplateSpec))]
#[serde(default, deny_unknown_fields)]
pub struct Template {
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?$"))]
    pub name: String,
    /// The providers that may make it; any that can when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub providers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub image: String,
    pub capacity: TemplateCapacity,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub taints: Vec<Taint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub capabilities: Vec<Capability>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub zone: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// By type of task: a command, subprocess:… or http://…
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub handlers: BTreeMap<String, String>,
    /// Folders of the provider's machine that the worker sees, read-only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub mounts: Vec<TemplateMount>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub network: String,
    /// never or idle.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(never|idle)?$"))]
    pub reuse: String,
    /// How many stand ready with nothing to do.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1000))]
    pub warm: i32,
    /// One with nothing to do goes after this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "60s"))]
    pub idle_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub idle_timeout_ms: Option<i64>,
    /// After this long it takes nothing new and goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "8h"))]
    pub max_lifetime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub max_lifetime_ms: Option<i64>,
    /// critical, high, normal or best-effort.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(critical|high|normal|best-effort)?$"))]
    pub sla: String,
}

/// One slot unless it says otherwise; zero elsewhere is no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TemplateCapacity {
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 100000))]
    pub slots: i32,
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub cpu_millis: i64,
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub memory_bytes: i64,
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub disk_bytes: i64,
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub gpus: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TemplateMount {
    #[cfg_attr(feature = "schema", schema(pattern = "^/"))]
    pub source: String,
    #[cfg_attr(feature = "schema", schema(pattern = "^/."))]
    pub target: String,
}

/// Somebody who makes workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ProviderSpec))]
#[serde(default, deny_unknown_fields)]
pub struct Provider {
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))]
    pub name: String,
    /// process or docker.
    #[cfg_attr(feature = "schema", schema(pattern = "^(process|docker)$"))]
    pub kind: String,
    /// Workers at one time; 10 when zero.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 100000))]
    pub cap: i32,
    /// By the hour, in thousandths.
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub cost: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(example = json!({"host": "unix:///var/run/docker.sock"})))]
    pub settings: BTreeMap<String, String>,
}

impl Provider {
    pub fn into_wire(self) -> v1::ProviderSpec {
        let Self { name, kind, cap, cost, settings } = self;
        v1::ProviderSpec { name, kind, cap, cost, settings: settings.into_iter().collect() }
    }

    pub fn from_wire(wire: v1::ProviderSpec) -> Self {
        let v1::ProviderSpec { name, kind, cap, cost, settings } = wire;
        Self { name, kind, cap, cost, settings: settings.into_iter().collect() }
    }
}

impl Template {
    pub fn into_wire(self) -> Result<v1::TemplateSpec, Invalid> {
        let TemplateCapacity { slots, cpu_millis, memory_bytes, disk_bytes, gpus } = self.capacity;
        let idle = length("idle_timeout", self.idle_timeout.as_deref(), self.idle_timeout_ms)?;
        let lifetime = length("max_lifetime", self.max_lifetime.as_deref(), self.max_lifetime_ms)?;
        let mount = |mount: TemplateMount| v1::Mount { source: mount.source, target: mount.target };
        Ok(v1::TemplateSpec {
            name: self.name,
            providers: self.providers,
            image: self.image,
            capacity: Some(v1::Capacity { slots, cpu_millis, memory_bytes, disk_bytes, gpus }),
            labels: self.labels.into_iter().collect(),
            taints: self.taints.into_iter().map(Taint::into_wire).collect(),
            capabilities: self.capabilities.into_iter().map(Capability::into_wire).collect(),
            zone: self.zone,
            environment: self.environment.into_iter().collect(),
            handlers: self.handlers.into_iter().collect(),
            mounts: self.mounts.into_iter().map(mount).collect(),
            network: self.network,
            reuse: self.reuse,
            warm: self.warm,
            idle_timeout_ms: idle.unwrap_or(0),
            max_lifetime_ms: lifetime.unwrap_or(0),
            sla: self.sla,
        })
    }

    pub fn from_wire(wire: v1::TemplateSpec) -> Self {
        let v1::Capacity { slots, cpu_millis, memory_bytes, disk_bytes, gpus } = wire.capacity.unwrap_or_default();
        let mount = |mount: v1::Mount| TemplateMount { source: mount.source, target: mount.target };
        let some = |ms: i64| (ms != 0).then_some(ms);
        Self {
            name: wire.name,
            providers: wire.providers,
            image: wire.image,
            capacity: TemplateCapacity { slots, cpu_millis, memory_bytes, disk_bytes, gpus },
            labels: wire.labels.into_iter().collect(),
            taints: wire.taints.into_iter().map(Taint::from_wire).collect(),
            capabilities: wire.capabilities.into_iter().map(Capability::from_wire).collect(),
            zone: wire.zone,
            environment: wire.environment.into_iter().collect(),
            handlers: wire.handlers.into_iter().collect(),
            mounts: wire.mounts.into_iter().map(mount).collect(),
            network: wire.network,
            reuse: wire.reuse,
            warm: wire.warm,
            idle_timeout: None,
            idle_timeout_ms: some(wire.idle_timeout_ms),
            max_lifetime: None,
            max_lifetime_ms: some(wire.max_lifetime_ms),
            sla: wire.sla,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_written_as_it_is_read() {
        let text = r#"{"name": "small", "image": "i", "idle_timeout": "5s", "capacity": {"slots": 2},
            "taints": [{"key": "gpu", "value": "yes"}], "mounts": [{"source": "/a", "target": "/b"}]}"#;
        let wire = serde_json::from_str::<Template>(text).expect("JSON").into_wire().expect("a template");
        assert_eq!((wire.idle_timeout_ms, wire.taints.len(), wire.mounts.len()), (5000, 1, 1));
        let again = serde_json::to_string(&Template::from_wire(wire.clone())).expect("JSON");
        assert_eq!(serde_json::from_str::<Template>(&again).expect("JSON").into_wire().expect("a template"), wire);
        assert!(serde_json::from_str::<Template>(r#"{"slots": 2}"#).is_err(), "no such field");
    }
}
