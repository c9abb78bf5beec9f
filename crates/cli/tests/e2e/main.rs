//! The whole system as people meet it: the real program, real servers, workers and jobs as processes of their own, ended
//! in every way that processes end.

mod access;
mod client;
mod cluster;
mod crash;
mod dead_letters;
mod docker;
mod embedded;
mod engine;
mod events;
mod fake;
mod files;
mod fleet;
mod graphs;
mod handlers;
mod http;
mod input;
mod jobs;
mod leaving;
mod logs;
mod placement;
mod postgres;
mod process;
mod providers;
mod queues;
#[path = "../../../provider/src/docker/tests/registry.rs"]
mod registry;
mod rest;
mod run;
mod schedules;
mod submit;
mod supervision;
mod tasks;
mod webhooks;
mod whole;
mod workers;
