//! A Python of the tests' own, with the published packages that judge Hodei from outside.
//!
//! Tests find it in `HODEI_TEST_PYTHON`.

use crate::services::complete;
use anyhow::{Context, Result};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const REQUIREMENTS: &str = include_str!("../python/requirements.txt");

/// Installs what is missing and returns the variables that tests look for.
pub fn env(root: &Path) -> Result<Vec<(&'static str, String)>> {
    match install(&root.join("target/tools/python")) {
        Ok(python) => Ok(vec![("HODEI_TEST_PYTHON", python.display().to_string())]),
        // As with PostgreSQL: what gates a change must run it all.
        Err(error) if env::var_os("CI").is_none_or(|ci| ci != "true") => {
            eprintln!("warning: no Python with packages, tests that need it will not run: {error:#}");
            Ok(Vec::new())
        }
        Err(error) => Err(error.context("Python with packages of PyPI is needed when CI=true")),
    }
}

fn install(folder: &Path) -> Result<PathBuf> {
    let (python, note) = (folder.join("bin/python"), folder.join("installed.txt"));
    if fs::read_to_string(&note).is_ok_and(|installed| installed == REQUIREMENTS) {
        return Ok(python);
    }
    eprintln!("installing packages of PyPI in {}", folder.display());
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let wanted = folder.join("requirements.txt");
    fs::write(&wanted, REQUIREMENTS)?;
    complete(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    complete(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(&wanted))?;
    fs::write(&note, REQUIREMENTS)?;
    Ok(python)
}
