//! A small file system in memory that can be filled to the last byte.

use anyhow::{Context, Result, bail};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

const BALLAST: &str = "ballast";

#[derive(Debug)]
pub struct Disk {
    pub path: PathBuf,
}

impl Disk {
    pub fn mount(path: &Path, bytes: u64) -> Result<Self> {
        fs::create_dir_all(path)?;
        let options = format!("size={bytes},mode=0755");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "hodei-chaos"]).arg(path).output();
        let mounted = mounted.context("cannot run mount")?;
        if !mounted.status.success() {
            bail!("cannot mount a tmpfs: {}", String::from_utf8_lossy(&mounted.stderr).trim());
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Takes what is left. To be called again while it should stay full: others may free some.
    pub fn fill(&self) {
        let Ok(mut ballast) = OpenOptions::new().create(true).append(true).open(self.path.join(BALLAST)) else {
            return;
        };
        for block in [1 << 20, 64 << 10, 4 << 10] {
            let zeros = vec![0; block];
            while ballast.write_all(&zeros).is_ok() {}
        }
    }

    pub fn empty(&self) {
        _ = fs::remove_file(self.path.join(BALLAST));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: what still runs there is about to be killed.
        _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
