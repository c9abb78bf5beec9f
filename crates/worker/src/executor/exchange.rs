//! What a job is given besides its spec, and what it leaves when it ends.

use super::folder::Folder;
use crate::end::{self, CHILDREN_BYTES, End, fatal};
use hodei_core::{
    protocol::{Assignment, DependencyResult, Finished},
    state::{Failure, FailureKind, Outcome},
};
use serde_json::{Value, json};

/// The job's data, if it has any.
pub(crate) fn data_of(assignment: &Assignment) -> Option<&[u8]> {
    let given = Some(assignment.spec.data.as_slice()).filter(|data| !data.is_empty());
    assignment.context.data.as_deref().or(given)
}

/// What a handler is told of the jobs that its own depended on.
pub(crate) fn dependencies_json(dependencies: &[DependencyResult]) -> Value {
    let result = |left: &DependencyResult| left.result.as_deref().and_then(|json| serde_json::from_slice(json).ok());
    let one = |left: &DependencyResult| json!({ "id": left.job.to_string(), "name": left.name, "result": result(left).unwrap_or(Value::Null) });
    dependencies.iter().map(one).collect()
}

/// Adds to the end of an execution what its process left in its files. What it left badly is a failure of a process that
/// says it succeeded.
pub(super) fn collect(folder: &Folder, assignment: &Assignment, finished: &mut Finished) {
    let before = data_of(assignment);
    let data = Folder::take_json(&folder.data, "the data");
    let data = data.map(|data| data.filter(|data| Some(data.as_slice()) != before));
    match &finished.outcome {
        Outcome::Succeeded => match succeeded(folder, data) {
            Ok(left) => {
                finished.outcome = left.end.map_or(Outcome::Succeeded, End::outcome);
                (finished.result, finished.data, finished.children) = (left.result, left.data, left.children);
            }
            Err(failure) => finished.outcome = Outcome::Failed(failure),
        },
        Outcome::Failed(failure) => {
            finished.data = data.unwrap_or_default();
            if let Ok(Some(End::Fail(message))) = wanted(folder) {
                finished.outcome = Outcome::Failed(Failure { fatal: true, message, ..failure.clone() });
            }
        }
        _ => finished.data = data.unwrap_or_default(),
    }
}

struct Leavings {
    end: Option<End>,
    result: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
    children: Vec<Vec<u8>>,
}

fn succeeded(folder: &Folder, data: Result<Option<Vec<u8>>, String>) -> Result<Leavings, Failure> {
    let bad = |problem: String| Failure::new(FailureKind::Error, problem);
    let end = wanted(folder).map_err(bad)?;
    let result = Folder::take_json(&folder.result, "the result").map_err(bad)?;
    let children = Folder::take(&folder.children, "the list of children", CHILDREN_BYTES).map_err(bad)?;
    let lines = children.as_deref().unwrap_or_default().split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.trim_ascii().is_empty());
    let jobs = lines.map(|line| serde_json::from_slice(line).map_err(|error| error.to_string()));
    // To run it again would not help.
    let children = end::children(jobs).map_err(fatal)?;
    Ok(Leavings { end, result, data: data.map_err(bad)?, children })
}

fn wanted(folder: &Folder) -> Result<Option<End>, String> {
    let text = Folder::take(&folder.end, "the end", 64 << 10)?;
    text.map(|text| end::read(&text).map_err(|problem| format!("the end cannot be understood: {problem}"))).transpose()
}
