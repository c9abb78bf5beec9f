//! A tar archive of a few files, made while it is sent: an agent may be large.

use bytes::Bytes;
use futures::{
    Stream,
    stream::{self, StreamExt},
};
use std::{fs::File, io, path::Path};
use tokio::io::AsyncReadExt;

const BLOCK: usize = 512;
const CHUNK: usize = 1 << 20;
/// Everybody may write in it, and remove only what is theirs: the user of an image is not known here.
const SHARED_FOLDER: u32 = 0o1777;

/// One file or folder.
#[derive(Debug)]
pub(super) struct Part {
    header: [u8; BLOCK],
    content: Option<(File, u64)>,
}

impl Part {
    pub(super) fn folder(target: &str) -> Self {
        Self { header: header(target, SHARED_FOLDER, 0, b'5'), content: None }
    }

    pub(super) fn file(target: &str, source: &Path, mode: u32) -> io::Result<Self> {
        let file = File::open(source)?;
        let size = file.metadata()?.len();
        Ok(Self { header: header(target, mode, size, b'0'), content: Some((file, size)) })
    }

    fn bytes(self) -> impl Stream<Item = io::Result<Bytes>> {
        let content = self.content.into_iter().map(|(file, size)| chunks(tokio::fs::File::from_std(file), size));
        let header = Bytes::copy_from_slice(&self.header);
        stream::once(async { Ok(header) }).chain(stream::iter(content).flatten())
    }
}

/// The archive, with the two empty blocks at its end.
pub(super) fn stream(parts: Vec<Part>) -> impl Stream<Item = io::Result<Bytes>> {
    let end = stream::once(async { Ok(Bytes::from_static(&[0; 2 * BLOCK])) });
    stream::iter(parts).flat_map(|part| part.bytes().boxed()).chain(end)
}

/// Exactly as many bytes as the header said, filled up to a whole block.
fn chunks(file: tokio::fs::File, size: u64) -> impl Stream<Item = io::Result<Bytes>> {
    let padding = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
    let read = move |(mut file, left): (tokio::fs::File, u64)| async move {
        if left == 0 {
            return Ok(None);
        }
        let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        file.read_exact(&mut chunk).await?;
        let left = left - chunk.len() as u64;
        Ok(Some((Bytes::from(chunk), (file, left))))
    };
    let padding = stream::once(async move { Ok(Bytes::from(vec![0; padding])) });
    stream::try_unfold((file, size), read).chain(padding)
}

/// In the format `ustar`. Names of ours are short.
fn header(target: &str, mode: u32, size: u64, kind: u8) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, target.trim_start_matches('/'));
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    // The sum is taken with spaces in its place.
    put(148, "        ");
    put(257, "ustar\x0000");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt;
    use std::{fs, process::Command};

    #[tokio::test]
    async fn tar_unpacks_what_was_packed() {
        let folder = tempfile::tempdir().unwrap();
        let content = vec![7; CHUNK + 700];
        let source = folder.path().join("source");
        fs::write(&source, &content).unwrap();
        let parts = vec![Part::file("/.hodei/agent", &source, 0o755).unwrap(), Part::folder("/.hodei/data")];
        let archive: Vec<Bytes> = stream(parts).try_collect().await.unwrap();
        let file = folder.path().join("archive.tar");
        fs::write(&file, archive.concat()).unwrap();
        let tar = Command::new("tar").arg("-xpf").arg(&file).arg("-C").arg(folder.path()).status().unwrap();
        assert!(tar.success());
        assert_eq!(fs::read(folder.path().join(".hodei/agent")).unwrap(), content);
        let mode = |name: &str| {
            use std::os::unix::fs::PermissionsExt;
            fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!((mode(".hodei/agent"), mode(".hodei/data")), (0o755, 0o1777));
    }
}
