//! Workers as they describe themselves and as they are listed.

use super::{
    jobs::{count, signed},
    requirements::{
        self, capabilities_from_wire, capabilities_to_wire, isolation_from_wire, isolation_to_wire, map_to_wire,
        sla_from_wire, some_text, taints_from_wire, taints_to_wire,
    },
};
use crate::v1;
use hodei_core::{
    brain::WorkerView,
    spec::{Invalid, check_task_type},
    worker::{Capacity, HandlerInfo, Offer, Sla, WorkerInfo, WorkerState},
};

pub(super) const MAX_SLOTS: i32 = 100_000;
const MAX_TEXT: usize = 256;
const MAX_TASK_TYPES: usize = 1000;
const MAX_HANDLERS: usize = 1000;

pub fn info_from_wire(info: v1::WorkerInfo) -> Result<WorkerInfo, Invalid> {
    let capacity = info.capacity.unwrap_or_default();
    for (field, text) in
        [("name", &info.name), ("version", &info.version), ("hostname", &info.hostname), ("ip", &info.ip)]
    {
        if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
            let problem = format!("must be one line of at most {MAX_TEXT} bytes");
            return Err(Invalid::new(format!("info.{field}"), problem));
        }
    }
    if !(1..=MAX_SLOTS).contains(&capacity.slots) {
        return Err(Invalid::new("info.capacity.slots", format!("must be between 1 and {MAX_SLOTS}")));
    }
    let positive = |field: &str, value: i64| {
        u64::try_from(value).map_err(|_| Invalid::new(format!("info.capacity.{field}"), "must not be negative"))
    };
    if info.task_types.len() > MAX_TASK_TYPES {
        return Err(Invalid::new("info.task_types", format!("must be at most {MAX_TASK_TYPES}")));
    }
    for (i, task_type) in info.task_types.iter().enumerate() {
        check_task_type(&format!("info.task_types[{i}]"), task_type)?;
    }
    if info.tasks_only && info.task_types.is_empty() {
        return Err(Invalid::new("info.tasks_only", "a worker that handles no task type must run processes"));
    }
    Ok(WorkerInfo {
        name: info.name,
        version: info.version,
        hostname: info.hostname,
        capacity: Capacity {
            slots: u32::try_from(capacity.slots).unwrap_or(0),
            cpu_millis: positive("cpu_millis", capacity.cpu_millis)?,
            memory_bytes: positive("memory_bytes", capacity.memory_bytes)?,
            disk_bytes: positive("disk_bytes", capacity.disk_bytes)?,
            gpus: u32::try_from(positive("gpus", capacity.gpus.into())?).unwrap_or(0),
        },
        ip: info.ip,
        labels: requirements::map("info.labels", info.labels)?,
        taints: taints_from_wire("info.taints", info.taints)?,
        capabilities: capabilities_from_wire("info.capabilities", info.capabilities)?,
        zone: some_text("info.zone", &info.zone)?,
        isolation: isolation_from_wire("info.isolation", &info.isolation)?,
        image: some_text("info.image", &info.image)?,
        sla: sla_from_wire("info.sla", &info.sla)?,
        offer: Offer { task_types: info.task_types.into_iter().map(Into::into).collect(), tasks_only: info.tasks_only },
        handlers: handlers_from_wire(info.handlers)?,
    })
}

fn handlers_from_wire(handlers: Vec<v1::HandlerInfo>) -> Result<Vec<HandlerInfo>, Invalid> {
    if handlers.len() > MAX_HANDLERS {
        return Err(Invalid::new("info.handlers", format!("must be at most {MAX_HANDLERS}")));
    }
    let handlers = handlers.into_iter().enumerate().map(|(i, handler)| {
        if handler.name.len() > MAX_TEXT || handler.name.chars().any(char::is_control) {
            let problem = format!("must be one line of at most {MAX_TEXT} bytes");
            return Err(Invalid::new(format!("info.handlers[{i}].name"), problem));
        }
        let sla = Sla::parse(&handler.sla);
        let sla = sla.map_err(|unknown| Invalid::new(format!("info.handlers[{i}].sla"), unknown.to_string()))?;
        Ok(HandlerInfo { name: handler.name, sla, up: !handler.given_up })
    });
    handlers.collect()
}

pub fn info_to_wire(info: &WorkerInfo) -> v1::WorkerInfo {
    v1::WorkerInfo {
        name: info.name.clone(),
        version: info.version.clone(),
        hostname: info.hostname.clone(),
        capacity: Some(capacity_to_wire(&info.capacity)),
        task_types: info.offer.task_types.iter().map(|task_type| task_type.to_string()).collect(),
        tasks_only: info.offer.tasks_only,
        ip: info.ip.clone(),
        labels: map_to_wire(&info.labels),
        taints: taints_to_wire(&info.taints),
        capabilities: capabilities_to_wire(&info.capabilities),
        zone: info.zone.as_deref().unwrap_or_default().to_owned(),
        isolation: isolation_to_wire(info.isolation),
        image: info.image.as_deref().unwrap_or_default().to_owned(),
        sla: info.sla.name().to_owned(),
        handlers: info.handlers.iter().map(handler_to_wire).collect(),
    }
}

fn handler_to_wire(handler: &HandlerInfo) -> v1::HandlerInfo {
    v1::HandlerInfo { name: handler.name.clone(), sla: handler.sla.name().to_owned(), given_up: !handler.up }
}

pub fn capacity_to_wire(capacity: &Capacity) -> v1::Capacity {
    v1::Capacity {
        slots: count(capacity.slots),
        cpu_millis: signed(capacity.cpu_millis),
        memory_bytes: signed(capacity.memory_bytes),
        disk_bytes: signed(capacity.disk_bytes),
        gpus: count(capacity.gpus),
    }
}

pub fn view_to_wire(view: &WorkerView) -> v1::Worker {
    let state = match view.state {
        WorkerState::Connecting => v1::WorkerState::Connecting,
        WorkerState::Ready => v1::WorkerState::Ready,
        WorkerState::Busy => v1::WorkerState::Busy,
        WorkerState::Draining => v1::WorkerState::Draining,
        WorkerState::Unhealthy => v1::WorkerState::Unhealthy,
        WorkerState::Terminated => v1::WorkerState::Terminated,
        WorkerState::Creating => v1::WorkerState::Creating,
        WorkerState::Terminating => v1::WorkerState::Terminating,
    };
    let origin = view.record.origin.as_ref();
    v1::Worker {
        id: view.record.id.to_string(),
        info: Some(info_to_wire(&view.record.info)),
        state: state.into(),
        running: count(view.running),
        registered_at_ms: view.record.registered_at.0,
        free: Some(capacity_to_wire(&view.free)),
        provider: origin.map(|origin| origin.provider.to_string()).unwrap_or_default(),
        template: origin.map(|origin| origin.template.name.to_string()).unwrap_or_default(),
        drain_reason: view.record.drain.as_ref().map(|order| order.reason.clone()).unwrap_or_default(),
    }
}
