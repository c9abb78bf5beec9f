//! What each call is called in the audit log, and what it needs. The one table for all doors.

use hodei_core::access::Role;
use std::{collections::HashMap, sync::LazyLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub name: &'static str,
    pub needs: Needs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Anybody may ask.
    Nothing,
    /// The credential of a worker, which the service itself checks.
    Worker,
    Role(Role),
}

const VIEWER: Needs = Needs::Role(Role::Viewer);
const SUBMITTER: Needs = Needs::Role(Role::Submitter);
const OPERATOR: Needs = Needs::Role(Role::Operator);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// By the path of the gRPC method.
const METHODS: &[(&str, &str, Needs)] = &[
    ("/hodei.v1.JobExecutionService/QueueJob", "jobs.submit", SUBMITTER),
    ("/hodei.v1.JobExecutionService/QueueJobs", "jobs.submit", SUBMITTER),
    ("/hodei.v1.JobExecutionService/GetJob", "jobs.get", VIEWER),
    ("/hodei.v1.JobExecutionService/ListJobs", "jobs.list", VIEWER),
    ("/hodei.v1.JobExecutionService/CancelJob", "jobs.cancel", SUBMITTER),
    ("/hodei.v1.JobExecutionService/CancelJobs", "jobs.cancel_matching", OPERATOR),
    ("/hodei.v1.JobExecutionService/RetryJob", "jobs.retry", SUBMITTER),
    ("/hodei.v1.JobExecutionService/ResumeJob", "jobs.resume", SUBMITTER),
    ("/hodei.v1.JobExecutionService/AssignJob", "jobs.assign", OPERATOR),
    ("/hodei.v1.JobExecutionService/WatchJob", "jobs.watch", VIEWER),
    ("/hodei.v1.JobExecutionService/StartJob", "executions.start", Needs::Worker),
    ("/hodei.v1.JobExecutionService/UpdateProgress", "executions.progress", Needs::Worker),
    ("/hodei.v1.JobExecutionService/CompleteJob", "executions.complete", Needs::Worker),
    ("/hodei.v1.JobExecutionService/FailJob", "executions.fail", Needs::Worker),
    ("/hodei.v1.LogStreamService/SubscribeLogs", "logs.follow", VIEWER),
    ("/hodei.v1.LogStreamService/GetLogs", "logs.get", VIEWER),
    ("/hodei.v1.EventService/StreamEvents", "events.follow", VIEWER),
    ("/hodei.v1.SchedulerService/ScheduleJob", "decisions.preview", VIEWER),
    ("/hodei.v1.SchedulerService/GetSchedulingDecision", "decisions.get", VIEWER),
    ("/hodei.v1.SchedulerService/ConfigureScheduler", "scheduler.configure", OPERATOR),
    ("/hodei.v1.SchedulerService/GetQueueStatus", "scheduler.get", VIEWER),
    ("/hodei.v1.SchedulerService/GetAvailableWorkers", "workers.list", VIEWER),
    ("/hodei.v1.QueueService/ListQueues", "queues.list", VIEWER),
    ("/hodei.v1.QueueService/GetQueue", "queues.get", VIEWER),
    ("/hodei.v1.QueueService/PauseQueue", "queues.pause", OPERATOR),
    ("/hodei.v1.QueueService/ResumeQueue", "queues.resume", OPERATOR),
    ("/hodei.v1.QueueService/ConfigureQueue", "queues.configure", OPERATOR),
    ("/hodei.v1.DeadLetterService/ListDeadLetters", "dead_letters.list", VIEWER),
    ("/hodei.v1.DeadLetterService/GetDeadLetter", "dead_letters.get", VIEWER),
    ("/hodei.v1.DeadLetterService/GetDeadLetterStats", "dead_letters.stats", VIEWER),
    ("/hodei.v1.DeadLetterService/ReplayDeadLetters", "dead_letters.replay", OPERATOR),
    ("/hodei.v1.DeadLetterService/DiscardDeadLetters", "dead_letters.discard", OPERATOR),
    ("/hodei.v1.ScheduleService/CreateSchedule", "schedules.create", OPERATOR),
    ("/hodei.v1.ScheduleService/UpdateSchedule", "schedules.update", OPERATOR),
    ("/hodei.v1.ScheduleService/GetSchedule", "schedules.get", VIEWER),
    ("/hodei.v1.ScheduleService/ListSchedules", "schedules.list", VIEWER),
    ("/hodei.v1.ScheduleService/DeleteSchedule", "schedules.delete", OPERATOR),
    ("/hodei.v1.ScheduleService/EnableSchedule", "schedules.enable", OPERATOR),
    ("/hodei.v1.ScheduleService/DisableSchedule", "schedules.disable", OPERATOR),
    ("/hodei.v1.ScheduleService/TriggerSchedule", "schedules.trigger", OPERATOR),
    ("/hodei.v1.ScheduleService/PreviewSchedule", "schedules.preview", VIEWER),
    ("/hodei.v1.ScheduleService/BackfillSchedule", "schedules.backfill", OPERATOR),
    ("/hodei.v1.ProviderManagementService/ListProviders", "providers.list", VIEWER),
    ("/hodei.v1.ProviderManagementService/GetProvider", "providers.get", VIEWER),
    ("/hodei.v1.ProviderManagementService/AddProvider", "providers.add", ADMIN),
    ("/hodei.v1.ProviderManagementService/PutProvider", "providers.put", ADMIN),
    ("/hodei.v1.ProviderManagementService/RemoveProvider", "providers.remove", ADMIN),
    ("/hodei.v1.ProviderManagementService/EnableProvider", "providers.enable", OPERATOR),
    ("/hodei.v1.ProviderManagementService/DisableProvider", "providers.disable", OPERATOR),
    ("/hodei.v1.ProviderManagementService/CheckProvider", "providers.check", OPERATOR),
    ("/hodei.v1.ProviderManagementService/ListTemplates", "templates.list", VIEWER),
    ("/hodei.v1.ProviderManagementService/GetTemplate", "templates.get", VIEWER),
    ("/hodei.v1.ProviderManagementService/PutTemplate", "templates.put", ADMIN),
    ("/hodei.v1.ProviderManagementService/RemoveTemplate", "templates.remove", ADMIN),
    ("/hodei.v1.ProviderManagementService/SetPool", "templates.pool", OPERATOR),
    ("/hodei.v1.ProviderManagementService/RestartTemplate", "templates.restart", OPERATOR),
    ("/hodei.v1.WebhookService/ListDeliveries", "deliveries.list", VIEWER),
    ("/hodei.v1.WebhookService/Redeliver", "deliveries.redeliver", OPERATOR),
    ("/hodei.v1.WorkerAgentService/Register", "workers.register", Needs::Worker),
    ("/hodei.v1.WorkerAgentService/WorkerStream", "workers.stream", Needs::Worker),
    ("/hodei.v1.WorkerAgentService/UpdateWorkerStatus", "workers.status", Needs::Worker),
    ("/hodei.v1.WorkerAgentService/UnregisterWorker", "workers.unregister", Needs::Worker),
    ("/hodei.v1.WorkerAdminService/CreateWorkerToken", "workers.token", OPERATOR),
    ("/hodei.v1.WorkerAdminService/ListWorkers", "workers.list", VIEWER),
    ("/hodei.v1.WorkerAdminService/DrainWorker", "workers.drain", OPERATOR),
    ("/hodei.v1.WorkerAdminService/RestartHandler", "workers.restart", OPERATOR),
    ("/hodei.v1.AccessService/CreateApiToken", "tokens.create", ADMIN),
    ("/hodei.v1.AccessService/ListApiTokens", "tokens.list", ADMIN),
    ("/hodei.v1.AccessService/RevokeApiToken", "tokens.revoke", ADMIN),
    ("/hodei.v1.AccessService/ListAudit", "audit.list", ADMIN),
    ("/grpc.health.v1.Health/Check", "health", Needs::Nothing),
    ("/grpc.health.v1.Health/Watch", "health", Needs::Nothing),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "reflection", VIEWER),
];

/// By method and route of HTTP, as axum writes it (`/api/v1/jobs/{id}`): the action, which must be one of those above. HEAD
/// counts as GET.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/health", "health"),
    ("GET", "/live", "health"),
    ("GET", "/health/live", "health"),
    ("GET", "/ready", "health"),
    ("GET", "/health/ready", "health"),
    ("POST", "/api/v1/jobs", "jobs.submit"),
    ("POST", "/api/v1/jobs/batch", "jobs.submit"),
    ("POST", "/api/v1/jobs/bulk", "jobs.submit"),
    ("GET", "/api/v1/jobs", "jobs.list"),
    ("POST", "/api/v1/jobs/cancel", "jobs.cancel_matching"),
    ("GET", "/api/v1/jobs/{id}", "jobs.get"),
    ("POST", "/api/v1/jobs/{id}/cancel", "jobs.cancel"),
    ("POST", "/api/v1/jobs/{id}/retry", "jobs.retry"),
    ("POST", "/api/v1/jobs/{id}/resume", "jobs.resume"),
    ("POST", "/api/v1/jobs/{id}/assign", "jobs.assign"),
    ("GET", "/api/v1/jobs/{id}/decision", "decisions.get"),
    ("GET", "/api/v1/jobs/{id}/logs", "logs.get"),
    ("GET", "/api/v1/jobs/{id}/logs/stream", "logs.follow"),
    ("GET", "/api/v1/jobs/{id}/events", "jobs.watch"),
    ("GET", "/api/v1/events", "events.follow"),
    ("GET", "/api/v1/dead-letter", "dead_letters.list"),
    ("GET", "/api/v1/dead-letter/stats", "dead_letters.stats"),
    ("POST", "/api/v1/dead-letter/replay", "dead_letters.replay"),
    ("POST", "/api/v1/dead-letter/discard", "dead_letters.discard"),
    ("GET", "/api/v1/dead-letter/{job_id}", "dead_letters.get"),
    ("DELETE", "/api/v1/dead-letter/{job_id}", "dead_letters.discard"),
    ("POST", "/api/v1/dead-letter/{job_id}/replay", "dead_letters.replay"),
    ("GET", "/api/v1/scheduler", "scheduler.get"),
    ("PUT", "/api/v1/scheduler", "scheduler.configure"),
    ("POST", "/api/v1/scheduler/decisions", "decisions.preview"),
    ("GET", "/api/v1/scheduler/workers", "workers.list"),
    ("GET", "/api/v1/queues", "queues.list"),
    ("GET", "/api/v1/queues/{name}", "queues.get"),
    ("POST", "/api/v1/queues/{name}/pause", "queues.pause"),
    ("POST", "/api/v1/queues/{name}/resume", "queues.resume"),
    ("PUT", "/api/v1/queues/{name}/settings", "queues.configure"),
    ("POST", "/api/v1/schedules", "schedules.create"),
    ("GET", "/api/v1/schedules", "schedules.list"),
    ("POST", "/api/v1/schedules/preview", "schedules.preview"),
    ("GET", "/api/v1/schedules/{schedule}", "schedules.get"),
    ("PUT", "/api/v1/schedules/{schedule}", "schedules.update"),
    ("DELETE", "/api/v1/schedules/{schedule}", "schedules.delete"),
    ("POST", "/api/v1/schedules/{schedule}/enable", "schedules.enable"),
    ("POST", "/api/v1/schedules/{schedule}/disable", "schedules.disable"),
    ("POST", "/api/v1/schedules/{schedule}/trigger", "schedules.trigger"),
    ("GET", "/api/v1/schedules/{schedule}/preview", "schedules.preview"),
    ("POST", "/api/v1/schedules/{schedule}/backfill", "schedules.backfill"),
    ("GET", "/api/v1/workers", "workers.list"),
    ("POST", "/api/v1/workers/tokens", "workers.token"),
    ("GET", "/api/v1/workers/{id}", "workers.list"),
    ("POST", "/api/v1/workers/{id}/drain", "workers.drain"),
    ("POST", "/api/v1/workers/{id}/restart", "workers.restart"),
    ("GET", "/api/v1/providers", "providers.list"),
    ("POST", "/api/v1/providers", "providers.add"),
    ("GET", "/api/v1/providers/{name}", "providers.get"),
    ("PUT", "/api/v1/providers/{name}", "providers.put"),
    ("DELETE", "/api/v1/providers/{name}", "providers.remove"),
    ("POST", "/api/v1/providers/{name}/health", "providers.check"),
    ("POST", "/api/v1/providers/{name}/enable", "providers.enable"),
    ("POST", "/api/v1/providers/{name}/disable", "providers.disable"),
    ("GET", "/api/v1/templates", "templates.list"),
    ("GET", "/api/v1/templates/{name}", "templates.get"),
    ("PUT", "/api/v1/templates/{name}", "templates.put"),
    ("DELETE", "/api/v1/templates/{name}", "templates.remove"),
    ("PUT", "/api/v1/templates/{name}/pool", "templates.pool"),
    ("POST", "/api/v1/templates/{name}/restart", "templates.restart"),
    ("GET", "/api/v1/webhooks/deliveries", "deliveries.list"),
    ("POST", "/api/v1/webhooks/deliveries/{id}/redeliver", "deliveries.redeliver"),
    ("GET", "/api/v1/health", "health"),
    ("GET", "/api/v1/live", "health"),
    ("GET", "/api/v1/ready", "health"),
];

static BY_METHOD: LazyLock<HashMap<&str, Action>> =
    LazyLock::new(|| METHODS.iter().map(|(path, name, needs)| (*path, Action { name, needs: *needs })).collect());

static BY_ROUTE: LazyLock<HashMap<(&str, &str), Action>> = LazyLock::new(|| {
    let named = |name: &str| METHODS.iter().find(|(_, action, _)| *action == name);
    let rows = ROUTES.iter().filter_map(|(method, route, name)| {
        named(name).map(|(_, name, needs)| ((*method, *route), Action { name, needs: *needs }))
    });
    rows.collect()
});

/// What a gRPC method is; none for one that is not in the table, and so not for anybody.
pub fn of_method(path: &str) -> Option<Action> {
    BY_METHOD.get(path).copied()
}

pub fn of_route(method: &str, route: &str) -> Option<Action> {
    let method = if method == "HEAD" { "GET" } else { method };
    BY_ROUTE.get(&(method, route)).copied()
}

/// The methods of a route, as the header `allow` lists them.
pub fn methods_of(route: &str) -> String {
    let methods: Vec<&str> =
        ROUTES.iter().filter(|(_, known, _)| *known == route).map(|(method, ..)| *method).collect();
    methods.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use std::collections::HashSet;

    fn methods_of(descriptors: &[u8]) -> Vec<String> {
        let files = FileDescriptorSet::decode(descriptors).expect("descriptors").file;
        let services = files.iter().flat_map(|file| file.service.iter().map(move |service| (file.package(), service)));
        services
            .flat_map(|(package, service)| {
                service.method.iter().map(move |method| format!("/{package}.{}/{}", service.name(), method.name()))
            })
            .collect()
    }

    #[test]
    fn every_method_has_a_row_and_every_row_a_method() {
        let ours = methods_of(hodei_api::DESCRIPTORS);
        assert!(ours.len() > 40, "{}", ours.len());
        let served = [
            ours,
            methods_of(tonic_health::pb::FILE_DESCRIPTOR_SET),
            methods_of(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET),
        ];
        let served: HashSet<String> = served.concat().into_iter().collect();
        for method in &served {
            assert!(of_method(method).is_some(), "{method} is in no table: nobody could call it");
        }
        for (path, ..) in METHODS {
            assert!(served.contains(*path), "{path} is not a method");
        }
        assert_eq!(BY_METHOD.len(), METHODS.len(), "a row is there twice");
    }

    #[test]
    fn an_action_needs_the_same_at_every_door() {
        for (path, name, needs) in METHODS {
            let other = METHODS.iter().find(|(_, other, n)| other == name && n != needs);
            assert_eq!(other, None, "{path}");
        }
        for (method, route, name) in ROUTES {
            assert_eq!(of_route(method, route).map(|action| action.name), Some(*name), "{method} {route}");
        }
        assert_eq!(of_route("HEAD", "/live").map(|action| action.needs), Some(Needs::Nothing));
        assert_eq!(of_route("POST", "/live"), None);
    }

    #[test]
    fn roles_are_as_documented() {
        let needs = |path: &str| of_method(path).map(|action| action.needs);
        assert_eq!(needs("/hodei.v1.JobExecutionService/QueueJob"), Some(SUBMITTER));
        assert_eq!(needs("/hodei.v1.JobExecutionService/CancelJobs"), Some(OPERATOR));
        assert_eq!(needs("/hodei.v1.AccessService/ListAudit"), Some(ADMIN));
        assert_eq!(needs("/hodei.v1.Nothing/Known"), None);
        let looking = ["get", "list", "watch", "follow", "stats", "preview"];
        for (path, name, needs) in METHODS.iter().filter(|(path, ..)| !path.contains("Access")) {
            let verb = name.rsplit('.').next().unwrap_or_default();
            assert_eq!(looking.contains(&verb), *needs == VIEWER && *name != "reflection", "{path}");
        }
    }
}
