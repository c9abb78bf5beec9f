//! The whole system as people meet it: the real program, real servers, workers and jobs as processes of their own, ended
//! in every way that processes end.

mod client;
mod cluster;
mod crash;
mod embedded;
mod fake;
mod input;
mod jobs;
mod logs;
mod postgres;
mod process;
mod run;
mod schedules;
mod tasks;
mod workers;
