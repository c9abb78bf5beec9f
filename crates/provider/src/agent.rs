//! The program that becomes a worker: this one, or another that an operator names.

use crate::{Order, ServerAddress};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Works also when the file of the running program was replaced by a newer one.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The program of agents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agent {
    named: Option<PathBuf>,
}

impl Agent {
    pub(crate) fn new(named: Option<PathBuf>) -> Self {
        Self { named }
    }

    /// Where it can be read and started by this process.
    pub(crate) fn path(&self) -> &Path {
        self.named.as_deref().unwrap_or(Path::new(THIS_PROGRAM))
    }

    /// Where others find it on this machine; none if its file is gone.
    pub(crate) fn for_others(&self) -> Option<PathBuf> {
        fs::canonicalize(self.path()).ok().filter(|path| path.is_file())
    }

    /// Whether it runs without the libraries of an image.
    pub(crate) fn is_static(&self) -> io::Result<bool> {
        is_static(&mut File::open(self.path())?)
    }
}

/// The variables of an agent: those of its template, and what no template has a say in.
pub(crate) fn environment(order: &Order, server: String, authority: Option<String>) -> BTreeMap<String, String> {
    let own = [
        ("HODEI_SERVER", Some(server)),
        ("HODEI_CA", authority),
        ("HODEI_WORKER_ID", Some(order.worker.to_string())),
        ("HODEI_TOKEN", Some(order.token.clone())),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    order.environment.clone().into_iter().chain(own).collect()
}

/// The command line of an agent, without the program.
pub(crate) fn arguments(order: &Order) -> Vec<String> {
    // What the image and the template put into the environment is meant for the jobs.
    ["worker", "run", "--pass-environment"]
        .map(str::to_owned)
        .into_iter()
        .chain(order.arguments.iter().cloned())
        .collect()
}

/// The server as a process of this machine reaches it, and the file of its authority.
pub(crate) fn on_this_machine(server: &ServerAddress) -> (String, Option<String>) {
    match server {
        ServerAddress::Url { url, authority } => {
            (url.clone(), authority.as_ref().map(|path| path.display().to_string()))
        }
        ServerAddress::Socket(path) => (format!("unix:{}", path.display()), None),
    }
}

/// A program that names an interpreter (PT_INTERP) is put together with its libraries when it starts, and an image need
/// not have them.
fn is_static(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    const INTERPRETER: u32 = 3;
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "it is not a program for 64-bit Linux");
    let mut header = [0; 64];
    file.read_exact(&mut header).map_err(|_| bad())?;
    // Class 2 is 64-bit; byte order 1 is little-endian, as on all that Hodei runs on.
    if header[..6] != [0x7f, b'E', b'L', b'F', 2, 1] {
        return Err(bad());
    }
    let number =
        |at: usize, size: usize| header[at..at + size].iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
    let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    for index in 0..count {
        let mut kind = [0; 4];
        file.seek(SeekFrom::Start(offset.saturating_add(index * size)))?;
        file.read_exact(&mut kind)?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn programs_that_need_libraries_are_known() {
        // Rust's tests are linked dynamically.
        assert!(!Agent::default().is_static().unwrap());
        let mut program = vec![0; 64 + 56];
        program[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        program[32] = 64;
        program[54] = 56;
        program[56] = 1;
        program[64] = 1;
        assert!(is_static(&mut Cursor::new(&program)).unwrap());
        program[64] = 3;
        assert!(!is_static(&mut Cursor::new(&program)).unwrap());
        assert!(is_static(&mut Cursor::new(b"#!/bin/sh")).is_err());
        assert!(is_static(&mut Cursor::new(&program[..70][..64])).is_err());
    }

    #[test]
    fn nothing_of_a_template_replaces_what_a_worker_is_told() {
        let order = crate::conformance::order();
        let order = Order {
            environment: [("HODEI_TOKEN".into(), "other".into()), ("MODE".into(), "fast".into())].into(),
            ..order
        };
        let all = environment(&order, "unix:/s".into(), None);
        assert_eq!(all.get("MODE").map(String::as_str), Some("fast"));
        assert_eq!(all.get("HODEI_TOKEN"), Some(&order.token));
        assert_eq!(all.get("HODEI_CA"), None);
    }
}
