//! A registry with one image, which holds one file, and with one that asks for a password.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// A large body goes in pieces of this size.
const PIECE: usize = 256 << 10;
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

pub struct Registry {
    pub address: SocketAddr,
    name: String,
}

impl Registry {
    /// With a file of this many bytes in its image, and a pause between two pieces of it.
    pub async fn open(size: usize, pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = listener.local_addr().expect("an address");
        let name = Uuid::new_v4().simple().to_string();
        let content = Arc::new(Content::new(&name, size));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&content), pause));
            }
        });
        Self { address, name }
    }

    pub fn image(&self) -> String {
        format!("{}/{}:1", self.address, self.name)
    }
}

struct Content {
    /// What is found under which end of a path, and of what kind it is.
    things: Vec<(String, &'static str, Bytes)>,
}

impl Content {
    fn new(name: &str, size: usize) -> Self {
        let layer = archive(name, size);
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = Bytes::from(format!(
            r#"{{"architecture":"{architecture}","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
            digest(&layer)
        ));
        let described = |kind: &str, bytes: &Bytes| {
            format!(r#"{{"mediaType":"{kind}","size":{},"digest":"{}"}}"#, bytes.len(), digest(bytes))
        };
        let manifest = Bytes::from(format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":[{}]}}"#,
            described(CONFIG, &config),
            described(LAYER, &layer)
        ));
        let at = |kind: &str, name: &str| format!("/{kind}/{name}");
        Self {
            things: vec![
                (format!("/{name}/manifests/1"), MANIFEST, manifest.clone()),
                (at("manifests", &digest(&manifest)), MANIFEST, manifest),
                (at("blobs", &digest(&config)), "application/octet-stream", config),
                (at("blobs", &digest(&layer)), "application/octet-stream", layer),
                ("/v2/".to_owned(), "application/json", Bytes::from_static(b"{}")),
            ],
        }
    }

    fn answer(&self, path: &str) -> (String, Bytes) {
        let head = |status: &str, kind: &str, more: &str, body: &Bytes| {
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n",
                body.len()
            )
        };
        if path.contains("/secret/") {
            let body =
                Bytes::from_static(br#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#);
            return (
                head("401 Unauthorized", "application/json", "WWW-Authenticate: Basic realm=\"test\"\r\n", &body),
                body,
            );
        }
        match self.things.iter().find(|(end, ..)| path.ends_with(end)) {
            Some((_, kind, body)) => {
                let more = format!("Docker-Content-Digest: {}\r\n", digest(body));
                (head("200 OK", kind, &more, body), body.clone())
            }
            None => {
                let body =
                    Bytes::from_static(br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#);
                (head("404 Not Found", "application/json", "", &body), body)
            }
        }
    }
}

/// A file in the form of tar: a header, the content, and an end of two empty blocks.
fn archive(name: &str, size: usize) -> Bytes {
    const BLOCK: usize = 512;
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(124, &format!("{size:011o}"));
    put(148, "        ");
    put(156, "0");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut bytes = header.to_vec();
    bytes.resize(BLOCK + size.next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    bytes.into()
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hash}")
}

/// One request for each connection.
async fn serve(stream: TcpStream, content: Arc<Content>, pause: Duration) {
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    let mut line = String::new();
    _ = stream.read_line(&mut first).await;
    while stream.read_line(&mut line).await.is_ok_and(|size| size > 2) {
        line.clear();
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (head, body) = content.answer(path);
    _ = stream.write_all(head.as_bytes()).await;
    if method == "GET" {
        for piece in body.chunks(PIECE) {
            _ = stream.write_all(piece).await;
            tokio::time::sleep(pause).await;
        }
    }
    _ = stream.shutdown().await;
}
