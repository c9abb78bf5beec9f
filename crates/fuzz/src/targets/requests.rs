//! Requests as they come in over gRPC: decoding, conversion, validation. What the services do with them afterwards is
//! tried on a live server.

use crate::{
    engine::{Target, Trace},
    proto::{Schema, Words},
    rng::Rng,
};
use bytes::Bytes;
use hodei_api::{convert, v1, wire};
use hodei_core::{
    id::{JobId, ScheduleId},
    job::Job,
    placement::SchedulerSettings,
    spec::{Invalid, JobSpec, Limits},
    state::State,
    time::Time,
};
use prost::Message;
use uuid::Uuid;

/// Small, so that what goes round the limit shows in small inputs.
const LIMITS: Limits = Limits { payload_bytes: 8 << 10 };
/// What an accepted job may take besides its payload: names, numbers, lists, as they are stored.
const OVERHEAD: usize = 8 << 10;
/// What goes back to the caller must fit in headers.
const LONGEST_COMPLAINT: usize = 4 << 10;

/// The first byte chooses the method, the rest is its request.
pub struct Requests {
    schema: Schema,
    words: Words,
}

impl Requests {
    pub fn new() -> Self {
        Self { schema: Schema::new(), words: Words { ids: (1..4).map(Uuid::from_u128).collect(), ..Words::default() } }
    }
}

impl Target for Requests {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let of = |(index, method): (usize, &crate::proto::Method)| {
            let messages = self.schema.good(&method.input, &self.words, rng);
            messages.into_iter().map(move |message| [&[index as u8][..], &message].concat()).collect::<Vec<_>>()
        };
        self.schema.methods.iter().enumerate().flat_map(of).collect()
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        let index = rng.below(self.schema.methods.len());
        let message = self.schema.methods.get(index).map(|method| self.schema.wild(&method.input, &self.words, rng));
        [&[index as u8][..], &message.unwrap_or_default()].concat()
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let Some((index, body)) = input.split_first() else { return };
        let methods = &self.schema.methods;
        let Some(method) = methods.get(usize::from(*index) % methods.len()) else { return };
        trace.say(&method.path);
        match take(&method.input, body) {
            Ok(()) => trace.accepted(),
            Err(complaint) => {
                assert!(complaint.len() <= LONGEST_COMPLAINT, "a complaint of {} bytes", complaint.len());
                trace.refused(&complaint);
            }
        }
    }
}

/// What the services do with a request before anything is looked up.
fn take(input: &str, body: &[u8]) -> Result<(), String> {
    let ok = |valid: Result<(), Invalid>| valid.map_err(|invalid| invalid.to_string());
    match input.trim_start_matches(".hodei.v1.") {
        "QueueJobRequest" => {
            let request: v1::QueueJobRequest = decode(body)?;
            ok(job(request.job.unwrap_or_default()).map_err(|bad| bad.within("job")))
        }
        "QueueJobsRequest" => {
            let request: v1::QueueJobsRequest = decode(body)?;
            let named = |(i, spec)| job(spec).map_err(|bad| bad.within(&format!("jobs[{i}]")));
            ok(request.jobs.into_iter().enumerate().try_for_each(named))
        }
        "GetJobRequest" => ok(convert::job_id(&decode::<v1::GetJobRequest>(body)?.job_id).map(drop)),
        "RetryJobRequest" => ok(convert::job_id(&decode::<v1::RetryJobRequest>(body)?.job_id).map(drop)),
        "WatchJobRequest" => ok(convert::job_id(&decode::<v1::WatchJobRequest>(body)?.job_id).map(drop)),
        "CancelJobRequest" => ok(convert::job_id(&decode::<v1::CancelJobRequest>(body)?.job_id).map(drop)),
        "ListJobsRequest" => {
            let request: v1::ListJobsRequest = decode(body)?;
            ok(request.states.iter().try_for_each(|state| convert::state_from_wire(*state).map(drop)))?;
            ok(hodei_server::fuzzing::page(request.page_size, &request.page_token))
        }
        "StartJobRequest" => ok(convert::execution_id(&decode::<v1::StartJobRequest>(body)?.execution_id).map(drop)),
        "UpdateProgressRequest" => {
            ok(convert::execution_id(&decode::<v1::UpdateProgressRequest>(body)?.execution_id).map(drop))
        }
        "CompleteJobRequest" => {
            ok(convert::execution_id(&decode::<v1::CompleteJobRequest>(body)?.execution_id).map(drop))
        }
        "FailJobRequest" => ok(convert::execution_id(&decode::<v1::FailJobRequest>(body)?.execution_id).map(drop)),
        "RegisterRequest" => {
            let request: v1::RegisterRequest = decode(body)?;
            if !request.worker_id.is_empty() {
                ok(convert::worker_id(&request.worker_id).map(drop))?;
            }
            let info = convert::info_from_wire(request.info.unwrap_or_default()).map_err(|bad| bad.to_string())?;
            assert_eq!(convert::info_from_wire(convert::info_to_wire(&info)), Ok(info));
            Ok(())
        }
        "WorkerMessage" => {
            let message: v1::WorkerMessage = decode(body)?;
            ok(convert::events_from_wire(message).map(drop))
        }
        "UpdateWorkerStatusRequest" => {
            let request: v1::UpdateWorkerStatusRequest = decode(body)?;
            _ = request.state();
            Ok(())
        }
        "UnregisterWorkerRequest" => decode::<v1::UnregisterWorkerRequest>(body).map(drop),
        "CreateWorkerTokenRequest" => {
            let request: v1::CreateWorkerTokenRequest = decode(body)?;
            ok(convert::worker_id(&request.worker_id).map(drop))
        }
        "ListWorkersRequest" => decode::<v1::ListWorkersRequest>(body).map(drop),
        "DrainWorkerRequest" => ok(convert::worker_id(&decode::<v1::DrainWorkerRequest>(body)?.worker_id).map(drop)),
        "RestartHandlerRequest" => {
            ok(convert::worker_id(&decode::<v1::RestartHandlerRequest>(body)?.worker_id).map(drop))
        }
        "SubscribeLogsRequest" => ok(convert::job_id(&decode::<v1::SubscribeLogsRequest>(body)?.job_id).map(drop)),
        "GetLogsRequest" => {
            let request: v1::GetLogsRequest = decode(body)?;
            ok(convert::job_id(&request.job_id).map(drop))?;
            ok(hodei_server::fuzzing::log_page(request.page_size, &request.page_token))
        }
        "CancelJobsRequest" => {
            let filter = decode::<v1::CancelJobsRequest>(body)?.filter.unwrap_or_default();
            ok(filter.states.iter().try_for_each(|state| convert::state_from_wire(*state).map(drop)))
        }
        "AssignJobRequest" => {
            let request: v1::AssignJobRequest = decode(body)?;
            ok(convert::job_id(&request.job_id).map(drop))?;
            ok(convert::worker_id(&request.worker_id).map(drop))
        }
        "ScheduleJobRequest" => ok(job(decode::<v1::ScheduleJobRequest>(body)?.job.unwrap_or_default())),
        "GetAvailableWorkersRequest" => ok(decode::<v1::GetAvailableWorkersRequest>(body)?.job.map_or(Ok(()), job)),
        "GetSchedulingDecisionRequest" => {
            ok(convert::job_id(&decode::<v1::GetSchedulingDecisionRequest>(body)?.job_id).map(drop))
        }
        "GetQueueStatusRequest" => decode::<v1::GetQueueStatusRequest>(body).map(drop),
        "ConfigureSchedulerRequest" => {
            let request: v1::ConfigureSchedulerRequest = decode(body)?;
            let settings = convert::scheduler_changed(SchedulerSettings::default(), &request);
            let settings = settings.map_err(|bad| bad.to_string())?;
            assert_eq!(convert::scheduler_from_wire(convert::scheduler_to_wire(settings)), Ok(settings));
            Ok(())
        }
        "ResumeJobRequest" => ok(convert::job_id(&decode::<v1::ResumeJobRequest>(body)?.job_id).map(drop)),
        "CreateScheduleRequest" => schedule(&decode::<v1::CreateScheduleRequest>(body)?.spec.unwrap_or_default()),
        "UpdateScheduleRequest" => schedule(&decode::<v1::UpdateScheduleRequest>(body)?.spec.unwrap_or_default()),
        "PreviewScheduleRequest" => schedule(&decode::<v1::PreviewScheduleRequest>(body)?.spec.unwrap_or_default()),
        "GetScheduleRequest" => decode::<v1::GetScheduleRequest>(body).map(drop),
        "ListSchedulesRequest" => decode::<v1::ListSchedulesRequest>(body).map(drop),
        "DeleteScheduleRequest" => decode::<v1::DeleteScheduleRequest>(body).map(drop),
        "EnableScheduleRequest" => decode::<v1::EnableScheduleRequest>(body).map(drop),
        "DisableScheduleRequest" => decode::<v1::DisableScheduleRequest>(body).map(drop),
        "TriggerScheduleRequest" => decode::<v1::TriggerScheduleRequest>(body).map(drop),
        "BackfillScheduleRequest" => decode::<v1::BackfillScheduleRequest>(body).map(drop),
        "ListQueuesRequest" => decode::<v1::ListQueuesRequest>(body).map(drop),
        "GetQueueRequest" => decode::<v1::GetQueueRequest>(body).map(drop),
        "PauseQueueRequest" => decode::<v1::PauseQueueRequest>(body).map(drop),
        "ResumeQueueRequest" => decode::<v1::ResumeQueueRequest>(body).map(drop),
        "ConfigureQueueRequest" => {
            let settings = decode::<v1::ConfigureQueueRequest>(body)?.settings.unwrap_or_default();
            ok(convert::settings_from_wire(settings).map(drop))
        }
        "ListDeadLettersRequest" => {
            let request: v1::ListDeadLettersRequest = decode(body)?;
            ok(letters(&request.filter.unwrap_or_default()))?;
            let place = convert::letter_place(&request.page_token).map_err(|bad| bad.to_string())?;
            assert_eq!(convert::letter_place(&convert::letter_token(place)), Ok(place));
            Ok(())
        }
        "GetDeadLetterRequest" => ok(convert::job_id(&decode::<v1::GetDeadLetterRequest>(body)?.job_id).map(drop)),
        "GetDeadLetterStatsRequest" => decode::<v1::GetDeadLetterStatsRequest>(body).map(drop),
        "ReplayDeadLettersRequest" => {
            ok(letters(&decode::<v1::ReplayDeadLettersRequest>(body)?.filter.unwrap_or_default()))
        }
        "DiscardDeadLettersRequest" => {
            ok(letters(&decode::<v1::DiscardDeadLettersRequest>(body)?.filter.unwrap_or_default()))
        }
        "StreamEventsRequest" => ok(hodei_server::fuzzing::event(&decode::<v1::StreamEventsRequest>(body)?.after)),
        "CreateApiTokenRequest" => {
            let request: v1::CreateApiTokenRequest = decode(body)?;
            ok(convert::optional_length("ttl_ms", request.ttl_ms).map(drop))?;
            ok(convert::role_from_wire(request.role).map(drop))
        }
        "ListApiTokensRequest" => decode::<v1::ListApiTokensRequest>(body).map(drop),
        "RevokeApiTokenRequest" => decode::<v1::RevokeApiTokenRequest>(body).map(drop),
        "ListAuditRequest" => decode::<v1::ListAuditRequest>(body).map(drop),
        "ListDeliveriesRequest" => {
            ok(convert::delivery_state(decode::<v1::ListDeliveriesRequest>(body)?.state).map(drop))
        }
        "RedeliverRequest" => {
            ok(convert::delivery_id("delivery_id", &decode::<v1::RedeliverRequest>(body)?.delivery_id).map(drop))
        }
        "AddProviderRequest" => provider(decode::<v1::AddProviderRequest>(body)?.spec),
        "PutProviderRequest" => provider(decode::<v1::PutProviderRequest>(body)?.spec),
        "PutTemplateRequest" => {
            let spec = decode::<v1::PutTemplateRequest>(body)?.spec.unwrap_or_default();
            let template = convert::template_from_wire(spec).map_err(|bad| bad.to_string())?;
            let again = convert::template_from_wire(convert::template_spec_to_wire(template.clone()));
            assert_eq!(again, Ok(template));
            Ok(())
        }
        "ListProvidersRequest" => decode::<v1::ListProvidersRequest>(body).map(drop),
        "GetProviderRequest" => decode::<v1::GetProviderRequest>(body).map(drop),
        "RemoveProviderRequest" => decode::<v1::RemoveProviderRequest>(body).map(drop),
        "EnableProviderRequest" => decode::<v1::EnableProviderRequest>(body).map(drop),
        "DisableProviderRequest" => decode::<v1::DisableProviderRequest>(body).map(drop),
        "CheckProviderRequest" => decode::<v1::CheckProviderRequest>(body).map(drop),
        "ListTemplatesRequest" => decode::<v1::ListTemplatesRequest>(body).map(drop),
        "GetTemplateRequest" => decode::<v1::GetTemplateRequest>(body).map(drop),
        "RemoveTemplateRequest" => decode::<v1::RemoveTemplateRequest>(body).map(drop),
        "SetPoolRequest" => decode::<v1::SetPoolRequest>(body).map(drop),
        "RestartTemplateRequest" => decode::<v1::RestartTemplateRequest>(body).map(drop),
        // A method that is added must be added here, too.
        other => panic!("no way to try {other}"),
    }
}

fn provider(spec: Option<v1::ProviderSpec>) -> Result<(), String> {
    let record = convert::provider_from_wire(spec.unwrap_or_default(), Time(1)).map_err(|bad| bad.to_string())?;
    _ = hodei_server::fleet::check_settings(&record);
    Ok(())
}

/// Whatever is taken for a schedule has a next tick or none, found in bounded time.
fn schedule(spec: &v1::ScheduleSpec) -> Result<(), String> {
    convert::schedule_from_wire(ScheduleId::NIL, spec).map(drop).map_err(|bad| bad.to_string())
}

fn letters(filter: &v1::DeadLetterFilter) -> Result<(), Invalid> {
    if !filter.failure_kind.is_empty() {
        convert::failure_kind(&filter.failure_kind)?;
    }
    if !filter.fingerprint.is_empty() {
        let print = convert::fingerprint_from_wire(&filter.fingerprint)?;
        assert_eq!(convert::fingerprint_from_wire(&convert::fingerprint_to_wire(print)), Ok(print));
    }
    Ok(())
}

fn decode<M: Message + Default + 'static>(body: &[u8]) -> Result<M, String> {
    wire::decode(Bytes::copy_from_slice(body)).map_err(|error| error.to_string())
}

fn job(spec: v1::JobSpec) -> Result<(), Invalid> {
    let spec = convert::spec_from_wire(spec)?;
    assert_eq!(convert::spec_from_wire(convert::spec_to_wire(&spec, true)), Ok(spec.clone()));
    spec.validate(&LIMITS)?;
    let (stored, kept) = (stored_size(&spec), stored_size(&row(&spec)));
    assert!(stored <= LIMITS.payload_bytes + OVERHEAD, "an accepted job is stored in {stored} bytes");
    assert!(kept <= OVERHEAD, "the row of an accepted job, which stays in memory, has {kept} bytes");
    Ok(())
}

fn row(spec: &JobSpec) -> Job {
    Job::new(JobId::NIL, spec, State::Pending { since: Time(0) }, 1, Time(0))
}

fn stored_size(value: &impl serde::Serialize) -> usize {
    let mut record = Vec::new();
    hodei_store::encode(value, &mut record).map_or(0, |()| record.len())
}

/// Ids, page tokens and credentials: text that is taken apart by hand.
pub struct Tokens;

impl Target for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let id = Uuid::from_u128(rng.number().into());
        let texts = [String::new(), id.to_string(), id.simple().to_string(), format!("{id}:7"), format!("{id}.abc")];
        texts.map(String::into_bytes).into()
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        let id = Uuid::from_u128(u128::from(rng.odd()) << 64 | u128::from(rng.odd()));
        let sign = *rng.pick(&[":", ".", "", "-", "\0", "é"]).unwrap_or(&"");
        format!("{id}{sign}{}", rng.odd()).into_bytes()
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let asked = [convert::job_id(text).map(drop), convert::worker_id(text).map(drop)];
        let pages = [hodei_server::fuzzing::page(1, text), hodei_server::fuzzing::log_page(1, text)];
        for outcome in asked.into_iter().chain(pages) {
            match outcome {
                Ok(()) => {
                    trace.say("good");
                    trace.accepted();
                }
                Err(invalid) => trace.refused(&invalid),
            }
        }
        if hodei_server::fuzzing::is_credential(text) {
            trace.say("a credential");
        }
    }
}
