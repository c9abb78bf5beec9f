//! The real parts that tests talk to: found or installed, started apart from what else runs on the machine, and gone afterwards.
//!
//! A test that needs PostgreSQL reads `HODEI_TEST_POSTGRES` (a URL); one that has to stop its PostgreSQL starts its
//! own with the programs in the folder `HODEI_TEST_PG_BIN`. A test that needs a Docker engine reads `HODEI_TEST_DOCKER` (where
//! it listens); the engine has the images of `docker.rs`, and reaches no registry.

mod docker;
mod postgres;

pub use postgres::programs as postgres_programs;

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use docker::Docker;
use postgres::Postgres;
use std::os::unix::process::CommandExt;

/// The path of a socket has room for so many bytes.
const LONGEST_SOCKET: usize = 107;

/// What was started; dropping it stops everything.
pub struct Services {
    env: Vec<(&'static str, String)>,
    postgres: Option<Postgres>,
    _docker: Option<Docker>,
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
    let parent = root.join("target/services");
    let postgres = or_without("PostgreSQL", Postgres::start(&parent))?;
    let docker = or_without("Docker engine", Docker::start(&parent))?;
    let of_postgres = postgres.iter().flat_map(Postgres::env);
    let env = of_postgres.chain(docker.iter().flat_map(Docker::env)).collect();
    Ok(Services { env, postgres, _docker: docker })
}

/// A developer without a part can still work on the rest; what gates a change must run it all.
fn or_without<T>(part: &str, started: Result<T>) -> Result<Option<T>> {
    match started {
        Ok(started) => Ok(Some(started)),
        Err(error) if env::var_os("CI").is_none_or(|ci| ci != "true") => {
            eprintln!("warning: no {part}, tests that need it will not run: {error:#}");
            Ok(None)
        }
        Err(error) => Err(error.context(format!("a {part} is needed when CI=true"))),
    }
}

/// The folder of a part, with a shell that waits for this process to let go of a pipe and then stops what runs there and
/// removes the folder. The pipe closes however this process ends: return, panic, Ctrl-C or kill -9.
struct Folder {
    path: PathBuf,
    cleaner: Child,
    pipe: Option<ChildStdin>,
}

impl Folder {
    /// `script` finds the folder in `$folder` and `words` in `"$@"`. It holds on to `held` until it is done.
    fn clean_later(path: PathBuf, script: &str, words: &[String], held: Option<File>) -> Result<Self> {
        let script = format!("trap '' HUP\nread -r _\nfolder=$1\nshift\n{script}");
        let mut cleaner = Command::new("sh")
            .args(["-c", &script, "cleaner"])
            .arg(&path)
            .args(words)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(held.map_or_else(Stdio::null, Stdio::from))
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
            eprintln!("warning: what was started in {} may still run: {error}", self.path.display());
        }
    }
}

fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(", ");
    ensure!(rustix::process::geteuid().is_root(), "only root may install packages; install {names} yourself");
    eprintln!("installing {names}");
    apt_get(&["update"])?;
    apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat())
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
    use std::{fs, process};

    #[test]
    fn a_failed_command_shows_what_it_said() {
        let error = complete(Command::new("sh").args(["-c", "echo no room >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
    }

    #[test]
    fn the_cleaner_runs_when_its_pipe_closes() {
        let path = env::temp_dir().join(format!("hodei-xtask-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        let script = r#"test "$1" = word && rm -rf "$folder""#;
        let folder = Folder::clean_later(path.clone(), script, &["word".into()], None).unwrap();
        fs::write(path.join("file"), "content").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
