//! `cargo xtask static`: the `hodei` program without any need of libraries, so that it runs in every image.
//!
//! Only the last step is another than that of an ordinary build: the objects are the same, and the C library goes into the
//! program. The linker warns where that library would load parts of itself when it runs (to look up names of hosts and
//! users). They are loaded where there are any; in an image without them names still come from `/etc/hosts` and the name
//! servers of `/etc/resolv.conf`, which the library does by itself since its version 2.34, and Hodei looks up no users.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::test::cargo;

#[derive(clap::Args)]
pub struct Args {
    /// With all optimisations
    #[arg(long)]
    release: bool,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    let path = build(root, args.release)?;
    eprintln!("{}", path.display());
    Ok(())
}

/// A copy with a place of its own: the ordinary build would replace the original, and the other way round.
pub fn build(root: &Path, release: bool) -> Result<PathBuf> {
    let profile = if release { "release" } else { "debug" };
    let mut arguments = vec!["rustc", "--package", "hodei", "--bin", "hodei"];
    arguments.extend(release.then_some("--release"));
    arguments.extend(["--", "-C", "target-feature=+crt-static", "-C", "strip=debuginfo"]);
    cargo(root, &arguments, &[])?;
    let folder = root.join("target/static").join(profile);
    fs::create_dir_all(&folder)?;
    let (new, path) = (folder.join("hodei.new"), folder.join("hodei"));
    // Beside and renamed: one that runs cannot be written to.
    fs::copy(root.join("target").join(profile).join("hodei"), &new).context("no program was built")?;
    fs::rename(new, &path)?;
    Ok(path)
}
