//! What a job asks of the worker that runs it, and when a worker has it.

use crate::job::Fnv;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// What a job reserves on its worker besides one slot, and what the worker must be like.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirements {
    /// Thousandths of a core; zero asks for none.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub gpus: u32,
    /// What most jobs have nothing of.
    pub constraints: Option<Arc<Constraints>>,
}

/// What kind of worker a job needs or would rather have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraints {
    /// At least this much between the job and the rest of the machine.
    pub isolation: Isolation,
    pub capabilities: Vec<Capability>,
    /// The image that the worker must run in.
    pub image: Option<Arc<str>>,
    /// All must hold.
    pub selector: Vec<Expression>,
    pub tolerations: Vec<Toleration>,
    pub zone: Option<Arc<str>>,
    /// The zone is a must and not a wish.
    pub zone_required: bool,
    /// The provider that the job would rather have its worker from.
    pub provider: Option<Arc<str>>,
}

/// From the weakest to the strongest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Isolation {
    #[default]
    Process,
    Container,
    Vm,
}

/// Something that a worker can do. A job that asks for it names the parameters that matter to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Capability {
    pub name: Arc<str>,
    pub parameters: BTreeMap<Arc<str>, Arc<str>>,
}

/// A condition on the labels of a worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Expression {
    pub key: Arc<str>,
    pub operator: Operator,
    /// For `In` and `NotIn`.
    pub values: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Keeps jobs off a worker unless they tolerate it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Taint {
    pub key: Arc<str>,
    pub value: Arc<str>,
    pub effect: TaintEffect,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaintEffect {
    /// Nothing is placed that does not tolerate it.
    #[default]
    NoSchedule,
    /// Others are preferred.
    PreferNoSchedule,
}

/// A job that has it may be placed in spite of a taint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Toleration {
    /// Any taint when unset.
    pub key: Option<Arc<str>>,
    /// Any value when unset.
    pub value: Option<Arc<str>>,
}

impl Requirements {
    pub fn of(cpu_millis: u64, memory_bytes: u64) -> Self {
        Self { cpu_millis, memory_bytes, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What makes two requirements one kind, for a number that goes into databases: the encoding must never change for
    /// what was there before.
    pub(crate) fn write_key(&self, key: &mut Fnv) {
        key.write(&self.cpu_millis.to_le_bytes());
        key.write(&self.memory_bytes.to_le_bytes());
        if self.disk_bytes != 0 || self.gpus != 0 || self.constraints.is_some() {
            key.write(&self.disk_bytes.to_le_bytes());
            key.write(&self.gpus.to_le_bytes());
        }
        if let Some(constraints) = &self.constraints {
            constraints.write_key(key);
        }
    }
}

impl Constraints {
    fn write_key(&self, key: &mut Fnv) {
        let mut text = |text: &str| {
            key.write(&(text.len() as u64).to_le_bytes());
            key.write(text.as_bytes());
        };
        text(self.isolation.name());
        text(&self.capabilities.len().to_string());
        for capability in &self.capabilities {
            text(&capability.name);
            text(&capability.parameters.len().to_string());
            for (name, value) in &capability.parameters {
                text(name);
                text(value);
            }
        }
        text(self.image.as_deref().unwrap_or_default());
        text(&self.selector.len().to_string());
        for expression in &self.selector {
            text(&expression.key);
            text(expression.operator.name());
            text(&expression.values.len().to_string());
            for value in &expression.values {
                text(value);
            }
        }
        text(&self.tolerations.len().to_string());
        for toleration in &self.tolerations {
            let of =
                |value: &Option<Arc<str>>| value.as_ref().map_or_else(|| "*".to_owned(), |value| format!("={value}"));
            text(&of(&toleration.key));
            text(&of(&toleration.value));
        }
        text(self.zone.as_deref().unwrap_or_default());
        text(if self.zone_required { "required" } else { "preferred" });
        text(self.provider.as_deref().unwrap_or_default());
    }
}

impl Expression {
    pub fn holds(&self, labels: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// As people write it.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match self.operator {
            Operator::In if self.values.len() == 1 => write!(f, "{key}={}", self.values[0]),
            Operator::In => write!(f, "{key} in ({})", self.values.join(", ")),
            Operator::NotIn => write!(f, "{key} notin ({})", self.values.join(", ")),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl Toleration {
    pub fn covers(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if self.value.is_empty() { Ok(()) } else { write!(f, "={}", self.value) }
    }
}

impl Capability {
    /// Whether this is what is asked for: the same name, and the parameters that were named.
    pub fn provides(&self, asked: &Capability) -> bool {
        self.name == asked.name && asked.parameters.iter().all(|(key, value)| self.parameters.get(key) == Some(value))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (i, (key, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl Isolation {
    pub const ALL: [Isolation; 3] = [Isolation::Process, Isolation::Container, Isolation::Vm];

    pub fn name(self) -> &'static str {
        match self {
            Isolation::Process => "process",
            Isolation::Container => "container",
            Isolation::Vm => "vm",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isolation| isolation.name() == name)
    }
}

impl Operator {
    pub const ALL: [Operator; 4] = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];

    pub fn name(self) -> &'static str {
        match self {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.name() == name)
    }
}

impl TaintEffect {
    pub fn name(self) -> &'static str {
        match self {
            TaintEffect::NoSchedule => "NoSchedule",
            TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule].into_iter().find(|effect| effect.name() == name)
    }
}
