//! Between the wire and the core. What comes in is checked here: a value that means nothing is an [`Invalid`] field.

mod access;
mod jobs;
mod providers;
mod queues;
mod requirements;
mod scheduler;
mod schedules;
mod stream;
mod webhooks;
mod workers;

pub use access::{api_token_to_wire, audit_to_wire, optional_length, role_from_wire, role_to_wire};
pub use jobs::{
    Stored, execution_id, id_text, job_id, job_to_wire, payload_of, spec_from_wire, spec_of_payload, spec_to_wire,
    state_from_wire, state_to_wire, worker_id,
};
pub use providers::{
    fleet_name, provider_from_wire, provider_to_wire, template_from_wire, template_spec_to_wire, template_to_wire,
    warm_from_wire,
};
pub use queues::{
    dead_letter_to_wire, failure_kind, fingerprint_from_wire, fingerprint_to_wire, letter_place, letter_token,
    queue_to_wire, settings_from_wire,
};
pub use requirements::{requirements_from_wire, requirements_to_wire};
pub use scheduler::{decision_to_wire, scheduler_changed, scheduler_from_wire, scheduler_to_wire};
pub use schedules::{schedule_from_wire, schedule_to_wire, timing_from_wire};
pub use stream::{
    MAX_RESULT, cut, events_from_wire, events_to_wire, from_server, from_worker, run, to_server, to_worker,
};
pub use webhooks::{delivery_id, delivery_state, delivery_to_wire};
pub use workers::{info_from_wire, info_to_wire, view_to_wire};
