//! What a job asks of its worker, in JSON.

use crate::v1;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Reserved on the worker while the job runs, and what the worker must be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Requirements {
    /// Thousandths of a core.
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub cpu_millis: i64,
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub memory_bytes: i64,
    #[serde(skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub disk_bytes: i64,
    #[serde(skip_serializing_if = "is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub gpus: i32,
    /// At least: process, container or vm.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub isolation: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub capabilities: Vec<Capability>,
    /// The image that its worker must run in.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256))]
    pub image: String,
    /// Conditions on the labels of the worker; all must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub selector: Vec<LabelExpression>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub tolerations: Vec<Toleration>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256))]
    pub zone: String,
    /// Otherwise the zone is a wish.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub zone_required: bool,
    /// The provider that it would rather have its worker from.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256))]
    pub provider: String,
}

/// Something that a worker can do, with the parameters that matter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Capability {
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 256))]
    pub name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// A condition on the labels of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelExpression {
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 256))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: String,
    /// For In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub values: Vec<String>,
}

/// A job that has it may be placed in spite of a taint; what is left out is any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Toleration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Keeps jobs off a worker unless they tolerate it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// NoSchedule, which is what it is when it is left out, or PreferNoSchedule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effect: String,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_none(number: &i32) -> bool {
    *number == 0
}

impl Requirements {
    pub fn into_wire(self) -> v1::Requirements {
        v1::Requirements {
            cpu_millis: self.cpu_millis,
            memory_bytes: self.memory_bytes,
            disk_bytes: self.disk_bytes,
            gpus: self.gpus,
            isolation: self.isolation,
            capabilities: self.capabilities.into_iter().map(Capability::into_wire).collect(),
            image: self.image,
            selector: self.selector.into_iter().map(LabelExpression::into_wire).collect(),
            tolerations: self.tolerations.into_iter().map(Toleration::into_wire).collect(),
            zone: self.zone,
            zone_required: self.zone_required,
            provider: self.provider,
        }
    }

    pub fn from_wire(wire: v1::Requirements) -> Self {
        let tolerations = wire.tolerations.into_iter();
        let selector = wire.selector.into_iter();
        Self {
            cpu_millis: wire.cpu_millis,
            memory_bytes: wire.memory_bytes,
            disk_bytes: wire.disk_bytes,
            gpus: wire.gpus,
            isolation: wire.isolation,
            capabilities: wire.capabilities.into_iter().map(Capability::from_wire).collect(),
            image: wire.image,
            selector: selector
                .map(|wire| LabelExpression { key: wire.key, operator: wire.operator, values: wire.values })
                .collect(),
            tolerations: tolerations.map(|wire| Toleration { key: wire.key, value: wire.value }).collect(),
            zone: wire.zone,
            zone_required: wire.zone_required,
            provider: wire.provider,
        }
    }
}

impl Capability {
    pub fn into_wire(self) -> v1::Capability {
        v1::Capability { name: self.name, parameters: self.parameters.into_iter().collect() }
    }

    pub fn from_wire(wire: v1::Capability) -> Self {
        Self { name: wire.name, parameters: wire.parameters.into_iter().collect() }
    }
}

impl LabelExpression {
    fn into_wire(self) -> v1::LabelExpression {
        v1::LabelExpression { key: self.key, operator: self.operator, values: self.values }
    }
}

impl Toleration {
    fn into_wire(self) -> v1::Toleration {
        v1::Toleration { key: self.key, value: self.value }
    }
}

impl Taint {
    pub fn into_wire(self) -> v1::Taint {
        v1::Taint { key: self.key, value: self.value, effect: self.effect }
    }

    pub fn from_wire(wire: v1::Taint) -> Self {
        Self { key: wire.key, value: wire.value, effect: wire.effect }
    }
}
