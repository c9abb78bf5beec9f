//! What the agent and its guardian say to each other, and how it travels: one packet per message on a Unix socket,
//! with file descriptors beside it.

use hodei_core::{
    id::{ExecutionId, WorkerId},
    time::Time,
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::MemfdFlags,
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fmt,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Seek, Write},
    mem::MaybeUninit,
    path::PathBuf,
};

/// From the agent on the control socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Control {
    /// The first message.
    Init(Init),
    /// A slot is used for the first time; its socket comes along.
    Attach {
        slot: u32,
    },
    /// No job may outlive this moment (milliseconds on the boot-time clock).
    Lease {
        deadline_ms: u64,
    },
    Stop {
        slot: u32,
        execution: ExecutionId,
        grace_ms: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Init {
    pub worker: WorkerId,
    pub pids_limit: u32,
    /// Processes whose environment names this folder are ours.
    pub scratch: PathBuf,
    /// Use this mechanism and no other.
    pub mechanism: Option<Mechanism>,
}

/// From the guardian on the control socket: it is ready, and nothing of a former life is left.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready(pub Isolation);

/// From the agent on a slot's socket. Standard output and standard error come along, and standard input if `stdin`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub execution: ExecutionId,
    /// Absolute, so that nothing has to be searched for.
    pub program: String,
    /// The program's name as the job gave it, then its arguments.
    pub args: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub directory: String,
    pub limits: Limits,
    pub stdin: bool,
    /// The lease under which the agent starts it. It may overtake the message that prolongs the lease.
    pub deadline_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Thousandths of a core; zero is no limit.
    pub cpu_millis: u64,
    /// Zero is no limit.
    pub memory_bytes: u64,
}

/// From the guardian on a slot's socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Left out when the job ended at once.
    Started {
        at: Time,
    },
    NotStarted(StartError),
    Ended(Ended),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StartError {
    /// The system's answer to the attempt to run the program.
    Spawn { errno: i32 },
    /// A limit could not be set.
    Limits { message: String },
    /// The lease had run out before.
    Lease,
}

/// A job's processes are all gone.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub out_of_memory: bool,
    pub stopped: Option<Stopped>,
    pub usage: Usage,
    pub started: Time,
    pub finished: Time,
}

/// Why the guardian ended a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stopped {
    /// The agent asked for it.
    Asked,
    Lease,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub user_ms: u64,
    pub system_ms: u64,
    pub max_rss_kib: u64,
}

/// How jobs are kept together and apart on this host, and which of their limits it enforces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    pub mechanism: Mechanism,
    pub limits: Vec<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mechanism {
    CgroupV1,
    CgroupV2,
    /// Process groups, parentage and environment: enough for honest jobs.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    Cpu,
    Memory,
    Pids,
}

impl Mechanism {
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::CgroupV1 => "cgroup v1",
            Mechanism::CgroupV2 => "cgroup v2",
            Mechanism::None => "none",
        }
    }
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::Cpu => "cpu",
            Limit::Memory => "memory",
            Limit::Pids => "pids",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<_> = self.limits.iter().map(|limit| limit.name()).collect();
        let limits = if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
        write!(f, "{} (limits: {limits})", self.mechanism.name())
    }
}

/// Packets above this size would not fit a socket's buffer everywhere; they travel in a memory file.
pub(crate) const INLINE: usize = 48 << 10;
/// What the guardian says is never longer.
pub(crate) const SHORT: usize = 4 << 10;
/// The most descriptors that one message carries: the three standard ones and a memory file.
const MAX_FDS: usize = 4;

/// No message is nested deeper; one that is would need more stack than a thread has.
const DEEPEST: usize = 64;

/// How the body of a message travels: the first byte of its packet.
const BODY_INLINE: u8 = 0;
const BODY_IN_FILE: u8 = 1;

/// Two connected ends. The second is for the guardian; the first does not block.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends one message, whole or not at all.
pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut packet = vec![BODY_INLINE];
    rmp_serde::encode::write(&mut packet, message).map_err(io::Error::other)?;
    if packet.len() <= INLINE {
        return send_packet(socket.as_fd(), &packet, fds);
    }
    let file = memory_file("message", &packet[1..])?;
    let all: Vec<_> = std::iter::once(file.as_fd()).chain(fds.iter().copied()).collect();
    send_packet(socket.as_fd(), &[BODY_IN_FILE], &all)
}

pub(crate) fn send_packet(socket: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// The next message and its descriptors, or `None` when the other side is gone. The packet must fit in `packet`.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    packet: &mut [u8],
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let size = loop {
        let into = &mut [IoSliceMut::new(packet)];
        match rustix::net::recvmsg(socket.as_fd(), into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?.bytes,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    match packet[..size].split_first() {
        None => Ok(None),
        Some((&BODY_IN_FILE, _)) if !fds.is_empty() => {
            let mut body = Vec::new();
            File::from(fds.remove(0)).read_to_end(&mut body)?;
            decode(&body, fds)
        }
        Some((_, body)) => decode(body, fds),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8], fds: Vec<OwnedFd>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut body = rmp_serde::Deserializer::from_read_ref(body);
    body.set_max_depth(DEEPEST);
    let message = T::deserialize(&mut body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, fds)))
}

/// A file without a name that holds `content` and stands at its start.
pub(crate) fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_arrive_with_their_descriptors() {
        for size in [0, 100, INLINE - 20, INLINE, 3 << 20] {
            let (ours, theirs) = socket_pair().expect("a socket pair");
            let text = "x".repeat(size);
            let file = memory_file("passed", b"content").expect("a memory file");
            send(&ours, &text, &[file.as_fd()]).expect("sent");
            let (got, fds): (String, _) = receive(&theirs, &mut [0; INLINE]).expect("received").expect("open");
            assert_eq!((got.len(), fds.len()), (size, 1));
            let mut content = String::new();
            File::from(fds.into_iter().next().expect("one")).read_to_string(&mut content).expect("readable");
            assert_eq!(content, "content");
        }
    }

    #[test]
    fn a_closed_socket_ends_the_conversation() {
        let (ours, theirs) = socket_pair().expect("a socket pair");
        drop(ours);
        assert!(receive::<String>(&theirs, &mut [0; SHORT]).expect("no error").is_none());
    }
}
