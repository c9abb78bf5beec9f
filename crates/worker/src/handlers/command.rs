//! Tasks run by a command, once for each: a process like any other, with the payload on its standard input.

use hodei_core::{
    protocol::Assignment,
    spec::{JobSpec, Work},
};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

const SHELL: &str = "/bin/sh";

/// What a handler starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A line for the shell.
    Line(String),
    /// A program and its arguments.
    Args(Vec<String>),
}

impl Program {
    pub(super) fn args(&self) -> Vec<String> {
        match self {
            Program::Line(line) => vec![SHELL.to_owned(), "-c".to_owned(), line.clone()],
            Program::Args(args) => args.clone(),
        }
    }
}

/// A command, and where and with what it is run.
#[derive(Clone, Debug)]
pub struct Command {
    pub program: Program,
    /// Absolute.
    pub directory: PathBuf,
    pub environment: BTreeMap<String, String>,
}

impl Command {
    /// The task as the process that does it. What the job's submitter set in its environment wins.
    pub(super) fn process(&self, assignment: &Assignment) -> Option<Assignment> {
        let spec = &*assignment.spec;
        let Work::Task { task_type, payload } = &spec.work else { return None };
        let mut args = self.program.args().into_iter();
        let work = Work::Shell { program: args.next()?, args: args.collect() };
        let mut environment = self.environment.clone();
        environment.extend(spec.environment.clone());
        environment.insert("HODEI_TASK_TYPE".to_owned(), task_type.clone());
        let spec = JobSpec {
            work,
            environment,
            stdin: payload.clone(),
            working_directory: Some(self.directory.to_string_lossy().into_owned()),
            ..spec.clone()
        };
        Some(Assignment { spec: Arc::new(spec), ..assignment.clone() })
    }
}
