//! Gets the peers: packages of npm, PyPI, crates.io and Debian, in exact versions, below `target/bench`.

use anyhow::{Context, Result, bail, ensure};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What runs a peer's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Node,
    Python,
    Apalis,
    /// Nothing but a program of the system.
    Tool,
}

/// The folders of the sources and of what is installed.
#[derive(Clone)]
pub struct Places {
    sources: PathBuf,
    installed: PathBuf,
}

impl Places {
    pub fn new(root: &Path) -> Self {
        Self { sources: root.join("crates/bench/peers"), installed: root.join("target/bench") }
    }

    pub fn install(&self, runtime: Runtime) -> Result<()> {
        match runtime {
            Runtime::Node => self.install_node(),
            Runtime::Python => self.install_python(),
            Runtime::Apalis => self.install_apalis(),
            Runtime::Tool => Ok(()),
        }
    }

    /// The program of a system, without its arguments.
    pub fn program(&self, runtime: Runtime, system: &str) -> Command {
        let mut command = match runtime {
            Runtime::Node => {
                let mut node = Command::new(self.installed.join("node/node_modules/.bin/node"));
                node.arg("--no-deprecation").arg(self.installed.join("node/main.mjs"));
                node.env("NODE_ENV", "production");
                node
            }
            Runtime::Python => {
                let mut python = Command::new(self.installed.join("venv/bin/python"));
                python.arg("-u").arg(self.sources.join("python/main.py")).env("PYTHONDONTWRITEBYTECODE", "1");
                python
            }
            Runtime::Apalis => Command::new(self.installed.join("apalis/release/bench-apalis")),
            Runtime::Tool => Command::new(system),
        };
        if runtime != Runtime::Tool {
            command.arg(system);
        }
        command
    }

    /// The version that is installed, as its package tells.
    pub fn version(&self, runtime: Runtime, package: &str) -> Result<String> {
        match runtime {
            Runtime::Node => {
                let path = self.installed.join("node/node_modules").join(package).join("package.json");
                let manifest: serde_json::Value = serde_json::from_slice(&fs::read(path)?)?;
                Ok(manifest["version"].as_str().unwrap_or_default().to_owned())
            }
            Runtime::Python => {
                let code = format!("import importlib.metadata as m; print(m.version('{package}'))");
                said(Command::new(self.installed.join("venv/bin/python")).args(["-c", &code]))
            }
            Runtime::Apalis => {
                let manifest = fs::read_to_string(self.sources.join("apalis/Cargo.toml"))?;
                let line = manifest.lines().find(|line| line.starts_with(&format!("{package} =")));
                let version = line.and_then(|line| line.split('"').nth(1)).context("no such dependency")?;
                Ok(version.trim_start_matches('=').to_owned())
            }
            Runtime::Tool => {
                let line = said(Command::new(package).arg("--version"))?;
                let last = line.lines().next().and_then(|line| line.split_whitespace().last());
                Ok(last.unwrap_or_default().to_owned())
            }
        }
    }

    /// The programs lie beside their packages, because that is where Node looks for them.
    fn install_node(&self) -> Result<()> {
        let folder = self.installed.join("node");
        fs::create_dir_all(&folder)?;
        let manifest = fs::read(self.sources.join("node/package.json"))?;
        if fs::read(folder.join("installed.json")).ok().as_ref() != Some(&manifest) {
            fs::write(folder.join("package.json"), &manifest)?;
            tell("packages of npm");
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]);
            said(npm.current_dir(&folder))?;
            fs::write(folder.join("installed.json"), &manifest)?;
        }
        for entry in fs::read_dir(self.sources.join("node"))? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|e| e == "mjs")) {
                fs::copy(&path, folder.join(name))?;
            }
        }
        Ok(())
    }

    fn install_python(&self) -> Result<()> {
        let folder = self.installed.join("venv");
        let list = self.sources.join("python/requirements.txt");
        let wanted = fs::read(&list)?;
        if fs::read(folder.join("installed.txt")).ok().as_ref() == Some(&wanted) {
            return Ok(());
        }
        fs::create_dir_all(&self.installed)?;
        tell("packages of PyPI");
        said(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        said(Command::new(folder.join("bin/pip")).args(["install", "--quiet", "-r"]).arg(&list))?;
        fs::write(folder.join("installed.txt"), wanted)?;
        Ok(())
    }

    fn install_apalis(&self) -> Result<()> {
        if !self.installed.join("apalis/release/bench-apalis").exists() {
            tell("apalis, with cargo");
        }
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--locked", "--quiet"]).current_dir(self.sources.join("apalis"));
        said(cargo.env("CARGO_TARGET_DIR", self.installed.join("apalis")))?;
        Ok(())
    }
}

/// Installs a package of Debian unless its program is there.
pub fn debian(program: &str, package: &str) -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return Ok(());
    }
    ensure!(rustix::process::geteuid().is_root(), "only root may install packages; install `{package}` yourself");
    tell(&format!("the package `{package}`"));
    let apt = |args: &[&str]| said(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"));
    apt(&["update"])?;
    apt(&["install", "-y", "--no-install-recommends", package])?;
    Ok(())
}

fn tell(what: &str) {
    println!("  installing {what}");
}

/// What a command printed; one that fails is an error with its last words.
fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let words = [output.stdout, output.stderr].concat();
        let words = String::from_utf8_lossy(&words);
        let lines: Vec<&str> = words.lines().collect();
        bail!("{program}: {}: {}", output.status, lines[lines.len().saturating_sub(5)..].join(" | "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
