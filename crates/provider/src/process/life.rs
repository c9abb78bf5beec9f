//! Which process is meant. A number alone does not say that: the system gives it to another process later.

use rustix::{
    fd::OwnedFd,
    process::{Pid, PidfdFlags},
};
use serde::{Deserialize, Serialize};
use std::fs;

/// A process, with what no other has together with its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Life {
    pid: i32,
    /// When it began, in ticks since the machine did.
    began: u64,
    /// Which start of the machine that was.
    boot: String,
}

impl Life {
    /// None when there is no such process, or it has ended.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, began: Stat::of(pid)?.began, boot: boot()? })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn goes_on(&self) -> bool {
        boot().as_ref() == Some(&self.boot) && Stat::of(self.pid).is_some_and(|stat| stat.began == self.began)
    }

    /// A handle on this process and no other.
    pub(super) fn handle(&self) -> Option<OwnedFd> {
        let handle = rustix::process::pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The handle is on whoever had the number when it was made; if that is still the one that is meant, it was then.
        self.goes_on().then_some(handle)
    }
}

fn boot() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

/// A living process as its `stat` file shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub parent: i32,
    pub began: u64,
}

impl Stat {
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// None for what is dead and waits to be reaped.
    fn parse(text: &str) -> Option<Self> {
        // The name, in brackets, may hold anything; what follows its last bracket is plain.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let state = *fields.first()?;
        if matches!(state, "Z" | "X") {
            return None;
        }
        Some(Self { parent: fields.get(1)?.parse().ok()?, began: fields.get(19)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_another_process_has_now_is_not_taken_for_it() {
        let own = i32::try_from(std::process::id()).unwrap();
        let life = Life::of(own).unwrap();
        assert!(life.goes_on() && life.handle().is_some());
        let earlier = Life { began: life.began - 1, ..life.clone() };
        assert!(!earlier.goes_on() && earlier.handle().is_none());
        let before_a_restart = Life { boot: "another".into(), ..life };
        assert!(!before_a_restart.goes_on() && before_a_restart.handle().is_none());
        assert!(!Life::default().goes_on());
    }

    #[test]
    fn stat_is_read_with_any_name() {
        let text = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000";
        assert_eq!(Stat::parse(text), Some(Stat { parent: 3, began: 4711 }));
        assert_eq!(Stat::parse(&text.replace(" S ", " Z ")), None);
        assert_eq!(Stat::parse("nonsense"), None);
    }
}
