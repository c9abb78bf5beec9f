//! PostgreSQL, as the tests need it.

use super::{Folder, LONGEST_SOCKET, complete, install};
use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{self, Command},
};

use anyhow::{Context, Result};

const OLDEST: u32 = 15;
/// PostgreSQL refuses to run as root; its packages bring this user.
const USER: &str = "postgres";
/// PostgreSQL adds a file name to the folder of its socket.
const SOCKET_NAME: usize = 22;

/// Stops the server and removes its folder.
const CLEANER: &str = r#"
if [ -f "$folder/data/postmaster.pid" ]; then
    "$@" stop --wait --silent --mode=immediate -D "$folder/data"
fi
rm -rf "$folder"
"#;

/// The folder with the programs of PostgreSQL, for those who start one of their own.
pub fn programs() -> Result<PathBuf> {
    if let Some(bin) = find() {
        return Ok(bin);
    }
    install(&["postgresql"]).with_context(|| {
        format!("PostgreSQL {OLDEST} or newer (initdb, pg_ctl, postgres) is not here and cannot be installed")
    })?;
    find().with_context(|| format!("the package installed no PostgreSQL {OLDEST} or newer"))
}

pub struct Postgres {
    bin: PathBuf,
    port: u16,
    _folder: Folder,
}

impl Postgres {
    pub fn start(parent: &Path) -> Result<Self> {
        let bin = programs()?;
        let owner = Owner::current();
        let pg_ctl = owner.command_line(&bin.join("pg_ctl"));
        let folder = Folder::clean_later(place(parent, &owner)?, CLEANER, &pg_ctl, None)?;
        let data = folder.path.join("data");

        let mut initdb = owner.command(&bin.join("initdb"), &folder.path);
        initdb.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        complete(&mut initdb)?;

        let port = free_port()?;
        configure(&data, &folder.path, port)?;
        let log = folder.path.join("log");
        let mut start = owner.command(&bin.join("pg_ctl"), &folder.path);
        start.args(["start", "--wait", "--silent", "-D"]).arg(&data).arg("-l").arg(&log);
        complete(&mut start).with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        eprintln!("PostgreSQL of {} listens on 127.0.0.1:{port}", bin.display());
        Ok(Self { bin, port, _folder: folder })
    }

    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("HODEI_TEST_POSTGRES", format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)),
            ("HODEI_TEST_PG_BIN", self.bin.display().to_string()),
        ]
    }
}

fn configure(data: &Path, sockets: &Path, port: u16) -> Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
    let sockets = sockets.display();
    // Durability is what the tests are about, so fsync stays on whatever a package's defaults say.
    write!(
        file,
        "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{sockets}'\n\
         fsync = on\nmax_connections = 200\n"
    )?;
    Ok(())
}

/// The system picks a port that nobody uses; it is free again once the listener is dropped.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Who runs PostgreSQL: this user, or `postgres` when this user is root.
struct Owner {
    prefix: Vec<String>,
}

impl Owner {
    fn current() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self { prefix: Vec::new() };
        }
        let user = USER;
        let prefix = ["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "--"];
        Self { prefix: prefix.map(String::from).to_vec() }
    }

    /// The words that run `program` as this owner.
    fn command_line(&self, program: &Path) -> Vec<String> {
        let mut words = self.prefix.clone();
        words.push(program.display().to_string());
        words
    }

    fn command(&self, program: &Path, folder: &Path) -> Command {
        let words = self.command_line(program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(folder);
        command
    }

    fn take(&self, folder: &Path) -> Result<()> {
        if self.prefix.is_empty() {
            return Ok(());
        }
        complete(Command::new("chown").arg(format!("{USER}:")).arg(folder))
    }

    /// Whether this owner can get at its folder: the folders above may be closed to others.
    fn reaches(&self, folder: &Path) -> bool {
        complete(self.command(Path::new("test"), Path::new("/")).arg("-w").arg(folder)).is_ok()
    }
}

/// A folder that its owner can use and whose path leaves room for a socket.
fn place(parent: &Path, owner: &Owner) -> Result<PathBuf> {
    let name = format!("postgres-{}", process::id());
    let mut path = parent.join(&name);
    make(&path, owner)?;
    if !owner.reaches(&path) || path.as_os_str().len() + SOCKET_NAME > LONGEST_SOCKET {
        fs::remove_dir(&path)?;
        path = env::temp_dir().join(format!("hodei-{name}"));
        make(&path, owner)?;
    }
    Ok(path)
}

fn make(path: &Path, owner: &Owner) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
    owner.take(path)
}

/// The newest server among Debian's versioned folders and PATH.
fn find() -> Option<PathBuf> {
    let packaged =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|dir| dir.path().join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    packaged
        .chain(env::split_paths(&path))
        // A link in PATH leads to the folder where the other programs are, too.
        .filter_map(|bin| Some(fs::canonicalize(bin.join("postgres")).ok()?.parent()?.to_path_buf()))
        .filter(|bin| ["initdb", "pg_ctl", "postgres"].iter().all(|program| bin.join(program).is_file()))
        .filter_map(|bin| Some((server_version(&bin)?, bin)))
        .filter(|(version, _)| *version >= OLDEST)
        .max()
        .map(|(_, bin)| bin)
}

fn server_version(bin: &Path) -> Option<u32> {
    let output = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
    major_version(&String::from_utf8_lossy(&output.stdout))
}

/// Reads `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`; a beta says `18beta1`.
fn major_version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once(") ")?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_packages_and_betas() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"), Some(15));
        assert_eq!(major_version("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_version("command not found"), None);
    }
}
