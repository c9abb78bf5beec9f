//! Looking for processes in `/proc`: the way on a host without cgroups.

use rustix::process::Pid;
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// How to know a process of ours: by its process group or by a variable in its environment. One that is just becoming
/// another program shows no environment; then its working directory counts.
#[derive(Debug)]
pub(super) struct Marks {
    pub group: Option<Pid>,
    pub variable: String,
    pub folder: PathBuf,
}

/// A living process as its `stat` file shows it.
#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
}

/// All living processes that have one of the marks, and all that descend from one of these.
pub(super) fn family(marks: &Marks) -> Vec<Pid> {
    let group = marks.group.map(|pid| pid.as_raw_nonzero().get());
    let all = processes();
    let mut found: HashSet<i32> = all
        .iter()
        .filter(|process| Some(process.group) == group || is_marked(process.pid, marks))
        .map(|process| process.pid)
        .collect();
    loop {
        let before = found.len();
        found.extend(all.iter().filter(|process| found.contains(&process.parent)).map(|p| p.pid).collect::<Vec<_>>());
        if found.len() == before {
            break;
        }
    }
    found.remove(&rustix::process::getpid().as_raw_nonzero().get());
    found.into_iter().filter_map(Pid::from_raw).collect()
}

/// The same, looking again before it says that there is none.
pub(super) fn family_at_second_look(marks: &Marks) -> Vec<Pid> {
    let found = family(marks);
    if !found.is_empty() {
        return found;
    }
    std::thread::sleep(Duration::from_millis(20));
    family(marks)
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// `None` for what is dead and waits to be reaped, too.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    // The name, in brackets, may hold anything; what follows its last bracket is plain.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    Some(Process { pid, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

fn is_marked(pid: i32, marks: &Marks) -> bool {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => works_in(pid, &marks.folder),
        Ok(environment) => environment.split(|byte| *byte == 0).any(|pair| pair.starts_with(marks.variable.as_bytes())),
        Err(_) => false,
    }
}

fn works_in(pid: i32, folder: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let process = parse_stat(7, "7 (a) b) (c) S 3 5 5 0").expect("alive");
        assert_eq!((process.parent, process.group), (3, 5));
        assert!(parse_stat(7, "7 (gone) Z 3 5 5 0").is_none());
    }
}
