//! `hodei scheduler …` and `hodei job explain`.

use crate::{
    args::{SchedulerArgs, SchedulerCommand},
    client::{Client, explain as in_words},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::{Value, json};

pub async fn run(client: &mut Client, command: SchedulerCommand, json: bool) -> Result<u8> {
    let settings = match command {
        SchedulerCommand::Show => {
            let answer = client.scheduler().get_queue_status(v1::GetQueueStatusRequest::default()).await;
            answer.map_err(|status| in_words(&status))?.into_inner().settings.unwrap_or_default()
        }
        SchedulerCommand::Set(args) => {
            let SchedulerArgs { strategy, threshold, fleet, provider_strategy } = args;
            let request = v1::ConfigureSchedulerRequest {
                strategy: strategy.unwrap_or_default(),
                threshold,
                fleet: fleet.unwrap_or_default(),
                provider_strategy: provider_strategy.unwrap_or_default(),
            };
            client.scheduler().configure_scheduler(request).await.map_err(|status| in_words(&status))?.into_inner()
        }
    };
    show(&settings, json);
    Ok(exit::OK)
}

fn show(settings: &v1::SchedulerSettings, json: bool) {
    match json {
        true => output::print_json(&json!({
            "strategy": settings.strategy,
            "threshold": settings.threshold,
            "fleet": settings.fleet,
            "provider_strategy": settings.provider_strategy,
        })),
        false => output::lines(&[
            ("strategy", settings.strategy.clone()),
            ("threshold", settings.threshold.to_string()),
            ("fleet", settings.fleet.clone()),
            ("providers", settings.provider_strategy.clone()),
        ]),
    }
}

pub async fn explain(client: &mut Client, id: String, json: bool) -> Result<u8> {
    let request = v1::GetSchedulingDecisionRequest { job_id: id };
    let answer = client.scheduler().get_scheduling_decision(request).await;
    let decision = answer.map_err(|status| in_words(&status))?.into_inner();
    if json {
        output::print_json(&decision_json(&decision));
        return Ok(exit::OK);
    }
    output::println(&sentence(&decision));
    if !decision.workers.is_empty() {
        output::println("");
        output::table(&COLUMNS, &decision.workers.iter().map(row).collect::<Vec<_>>());
    }
    Ok(exit::OK)
}

pub async fn assign(client: &mut Client, job: String, worker: String, json: bool) -> Result<u8> {
    let request = v1::AssignJobRequest { job_id: job.clone(), worker_id: worker };
    let answer = client.jobs().assign_job(request).await.map_err(|status| in_words(&status))?.into_inner();
    let state = output::state_name(answer.state());
    match json {
        true => output::print_json(&json!({ "job_id": job, "state": state })),
        false => output::println(&state),
    }
    Ok(exit::OK)
}

/// What becomes of the job, and why.
fn sentence(decision: &v1::SchedulingDecision) -> String {
    let (state, reason) = (&decision.state, &decision.reason);
    let named = decision.workers.iter().find(|considered| considered.worker_id == decision.worker_id);
    let worker = named.map_or(&decision.worker_id, |considered| &considered.name);
    match decision.decision() {
        v1::Decision::Assign if state == "pending" => format!("The job is pending and goes to {worker}: {reason}."),
        v1::Decision::Assign => format!("The job is {state}, on {worker}: {reason}."),
        v1::Decision::Provision => format!("The job is {state} and a worker is made for it: {reason}."),
        v1::Decision::Reject => format!("The job is {state}, rejected: {reason}."),
        v1::Decision::Enqueue | v1::Decision::Unspecified => format!("The job is {state}: {reason}."),
    }
}

const COLUMNS: [output::Column; 9] = [
    ("WORKER", 0),
    ("ID", 6),
    ("SCORE", 0),
    ("CAPACITY/30", 5),
    ("LOAD/25", 4),
    ("AFFINITY/20", 3),
    ("ZONE/15", 2),
    ("HISTORY/10", 1),
    ("DROPPED BY", 0),
];

fn row(considered: &v1::Considered) -> Vec<String> {
    let score = considered.score.unwrap_or_default();
    let points = |points: f64| considered.score.map_or_else(|| "-".to_owned(), |_| points.to_string());
    let dropped = match considered.filter.is_empty() {
        true => String::new(),
        false => format!("{}: {}", considered.filter, considered.why),
    };
    vec![
        considered.name.clone(),
        considered.worker_id.clone(),
        points(score.total),
        points(score.capacity),
        points(score.load),
        points(score.affinity),
        points(score.zone),
        points(score.history),
        dropped,
    ]
}

fn decision_json(decision: &v1::SchedulingDecision) -> Value {
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let workers = decision.workers.iter().map(|considered| {
        json!({
            "worker_id": considered.worker_id,
            "name": considered.name,
            "filter": text(&considered.filter),
            "why": text(&considered.why),
            "score": considered.score.map(score_json),
        })
    });
    let name = decision.decision().as_str_name().trim_start_matches("DECISION_").to_ascii_lowercase();
    json!({
        "decision": name,
        "reason": decision.reason,
        "worker_id": text(&decision.worker_id),
        "provider": text(&decision.provider),
        "template": text(&decision.template),
        "strategy": decision.strategy,
        "state": text(&decision.state),
        "workers": workers.collect::<Vec<_>>(),
    })
}

fn score_json(score: v1::Score) -> Value {
    json!({
        "total": score.total,
        "capacity": score.capacity,
        "load": score.load,
        "affinity": score.affinity,
        "zone": score.zone,
        "history": score.history,
    })
}
