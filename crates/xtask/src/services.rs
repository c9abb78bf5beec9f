//! The real parts that tests talk to: found or installed, started on a free port, and gone afterwards.
//!
//! A test that needs PostgreSQL reads `HODEI_TEST_POSTGRES` (a URL); one that has to stop its PostgreSQL starts its
//! own with the programs in the folder `HODEI_TEST_PG_BIN`.

use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

const OLDEST_POSTGRES: u32 = 15;
/// PostgreSQL refuses to run as root; its packages bring this user.
const POSTGRES_USER: &str = "postgres";
/// A socket's path has room for 107 bytes, and PostgreSQL adds a file name of up to 19.
const LONGEST_SOCKET_FOLDER: usize = 85;

/// What was started; dropping it stops everything.
pub struct Services {
    env: Vec<(&'static str, String)>,
    postgres: Option<Postgres>,
}

impl Services {
    /// Tells the tests where everything is.
    pub fn env(&self) -> &[(&'static str, String)] {
        &self.env
    }

    pub fn has_postgres(&self) -> bool {
        self.postgres.is_some()
    }
}

pub fn start(root: &Path) -> Result<Services> {
    match Postgres::start(&root.join("target/services")) {
        Ok(postgres) => Ok(Services { env: postgres.env(), postgres: Some(postgres) }),
        // A developer without PostgreSQL can still work on the rest; what gates a change must run it all.
        Err(error) if env::var_os("CI").is_none_or(|ci| ci != "true") => {
            eprintln!("warning: no PostgreSQL, tests that need it will not run: {error:#}");
            Ok(Services { env: Vec::new(), postgres: None })
        }
        Err(error) => Err(error.context("PostgreSQL is needed when CI=true")),
    }
}

/// The folder with the programs of PostgreSQL, for those who start one of their own.
pub fn postgres_programs() -> Result<PathBuf> {
    find_or_install()
}

struct Postgres {
    bin: PathBuf,
    port: u16,
    _folder: Folder,
}

impl Postgres {
    fn start(parent: &Path) -> Result<Self> {
        let bin = find_or_install()?;
        let owner = Owner::current();
        let pg_ctl = owner.command_line(&bin.join("pg_ctl"));
        let folder = Folder::create(parent, &owner, &pg_ctl)?;
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

    fn env(&self) -> Vec<(&'static str, String)> {
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
        let user = POSTGRES_USER;
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
        complete(Command::new("chown").arg(format!("{POSTGRES_USER}:")).arg(folder))
    }

    /// Whether this owner can get at its folder: the folders above may be closed to others.
    fn reaches(&self, folder: &Path) -> bool {
        complete(self.command(Path::new("test"), Path::new("/")).arg("-w").arg(folder)).is_ok()
    }
}

/// The folder of one PostgreSQL, with a shell that waits for this process to let go of a pipe and then stops the
/// server and removes the folder. The pipe closes however this process ends: return, panic, Ctrl-C or kill -9.
struct Folder {
    path: PathBuf,
    cleaner: Child,
    pipe: Option<ChildStdin>,
}

const CLEANER: &str = r#"
trap '' HUP
read -r _
folder=$1
shift
if [ -f "$folder/data/postmaster.pid" ]; then
    "$@" stop --wait --silent --mode=immediate -D "$folder/data"
fi
rm -rf "$folder"
"#;

impl Folder {
    fn create(parent: &Path, owner: &Owner, pg_ctl: &[String]) -> Result<Self> {
        let name = format!("postgres-{}", process::id());
        let mut path = parent.join(&name);
        make(&path, owner)?;
        if !owner.reaches(&path) || path.as_os_str().len() > LONGEST_SOCKET_FOLDER {
            fs::remove_dir(&path)?;
            path = env::temp_dir().join(format!("hodei-{name}"));
            make(&path, owner)?;
        }
        let mut cleaner = Command::new("sh")
            .args(["-c", CLEANER, "cleaner"])
            .arg(&path)
            .args(pg_ctl)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C goes to the terminal's foreground group; the cleaner has to live through it.
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        let pipe = cleaner.stdin.take();
        Ok(Self { path, cleaner, pipe })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.pipe.take());
        if let Err(error) = self.cleaner.wait() {
            eprintln!("warning: PostgreSQL in {} may still run: {error}", self.path.display());
        }
    }
}

fn make(path: &Path, owner: &Owner) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
    owner.take(path)
}

fn find_or_install() -> Result<PathBuf> {
    if let Some(bin) = find() {
        return Ok(bin);
    }
    install().with_context(|| {
        format!("PostgreSQL {OLDEST_POSTGRES} or newer (initdb, pg_ctl, postgres) is not here and cannot be installed")
    })?;
    find().with_context(|| format!("the package installed no PostgreSQL {OLDEST_POSTGRES} or newer"))
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
        .filter(|(version, _)| *version >= OLDEST_POSTGRES)
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

fn install() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root may install packages; install `postgresql` yourself");
    eprintln!("PostgreSQL is missing: installing the package `postgresql`");
    apt_get(&["update"])?;
    apt_get(&["install", "-y", "--no-install-recommends", "postgresql"])
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    complete(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Runs a command to its end; what it printed is shown only when it fails.
pub fn complete(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said).trim_end());
    }
    Ok(())
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

    #[test]
    fn a_failed_command_shows_what_it_said() {
        let error = complete(Command::new("sh").args(["-c", "echo no room >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
    }

    #[test]
    fn the_cleaner_removes_the_folder_when_its_pipe_closes() {
        let parent = env::temp_dir().join(format!("hodei-xtask-{}", process::id()));
        let owner = Owner { prefix: Vec::new() };
        let folder = Folder::create(&parent, &owner, &["false".into()]).unwrap();
        let path = folder.path.clone();
        fs::write(path.join("file"), "content").unwrap();
        drop(folder);
        assert!(!path.exists());
        fs::remove_dir(parent).unwrap();
    }
}
