//! Where the server may be reached. There is no access control on TCP yet, so nothing but this machine may reach it.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};

/// The addresses of one server.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pub grpc: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub enum ListenError {
    #[error("{0} is not a loopback address; until access control exists, only 127.0.0.0/8 and [::1] are served")]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {at}: {source}")]
    Io { at: String, source: io::Error },
}

pub async fn tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    TcpListener::bind(address).await.map_err(|source| ListenError::Io { at: address.to_string(), source })
}

/// A socket that only its owner can open. The caller holds the lock of the folder, so a socket that is already there was
/// left by a server that died.
pub fn unix(path: &Path) -> Result<UnixListener, ListenError> {
    let bind = || -> io::Result<UnixListener> {
        if path.exists() {
            std::fs::remove_file(path)?;
        }
        let (short, _folder) = reachable(path)?;
        let listener = UnixListener::bind(short)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|source| ListenError::Io { at: path.display().to_string(), source })
}

/// The kernel takes socket paths of about 100 bytes. A longer one is reached through its open folder, which must stay
/// open until the socket has been bound or connected.
pub fn reachable(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    const LONGEST: usize = 100;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok((path.to_owned(), None)) };
    if path.as_os_str().len() <= LONGEST {
        return Ok((path.to_owned(), None));
    }
    let folder = File::open(folder)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name), Some(folder)))
}
