//! What a worker and a subprocess say to each other: frames of a length (4 bytes, the highest first) and so many bytes of
//! MessagePack, which are a map with a `type`. docs/handlers.md tells all of it.

use super::super::view::View;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) const VERSION: u32 = 1;
/// Nobody sends a longer frame.
pub(super) const MAX_FRAME: usize = 32 << 20;
const LENGTH: usize = 4;

#[allow(clippy::large_enum_variant, reason = "each is made, written and dropped at once")]
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ToProcess<'t> {
    Hello {
        version: u32,
        /// The time between two heartbeats, of both sides.
        heartbeat_ms: u64,
        max_frame: usize,
        /// The most jobs that it will be given at one time.
        concurrency: u32,
    },
    Job {
        /// How both sides name this attempt from now on.
        id: String,
        #[serde(flatten)]
        view: View<'t>,
        environment: BTreeMap<&'t str, &'t str>,
        /// How long it may run.
        timeout_ms: Option<u64>,
    },
    Cancel {
        id: String,
    },
    Heartbeat,
    /// Finish what runs, then end.
    Shutdown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FromProcess {
    Hello {
        version: u32,
        task_types: Vec<String>,
        /// The most jobs that it takes at one time, if that is less than it was offered.
        #[serde(default)]
        concurrency: Option<u32>,
    },
    /// Of the process, or of one job.
    Heartbeat {
        #[serde(default)]
        id: Option<String>,
    },
    /// It has begun with a job.
    Started {
        id: String,
    },
    Progress {
        id: String,
        percent: f64,
        #[serde(default)]
        message: String,
    },
    Log {
        id: String,
        text: String,
        #[serde(default)]
        stderr: bool,
    },
    Data {
        id: String,
        data: Value,
    },
    Done {
        id: String,
        #[serde(default)]
        result: Value,
        #[serde(default)]
        children: Vec<Value>,
    },
    Failed {
        id: String,
        error: String,
        #[serde(default)]
        detail: String,
        #[serde(default)]
        fatal: bool,
    },
    Snooze {
        id: String,
        delay_ms: u64,
        #[serde(default)]
        children: Vec<Value>,
    },
    Block {
        id: String,
        reason: String,
        #[serde(default)]
        children: Vec<Value>,
    },
}

/// A frame with this message in it, or why there is none.
pub(super) fn frame(message: &ToProcess<'_>) -> Result<Vec<u8>, String> {
    let mut frame = vec![0; LENGTH];
    rmp_serde::encode::write_named(&mut frame, message).map_err(|error| error.to_string())?;
    let size = frame.len() - LENGTH;
    if size > MAX_FRAME {
        return Err(format!("the frame would have {size} bytes; at most {MAX_FRAME} are allowed"));
    }
    frame[..LENGTH].copy_from_slice(&(size as u32).to_be_bytes());
    Ok(frame)
}

/// No frame is so long that its length looks like text.
fn is_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~')
}

fn text_instead(sent: &[u8]) -> String {
    const SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&sent[..sent.len().min(SHOWN)]).into_owned();
    format!("text instead of a frame: {text:?}. Its standard output belongs to the protocol: print to standard error")
}

/// What has come of frames that are not whole yet.
#[derive(Debug, Default)]
pub(super) struct Frames {
    pub buffer: Vec<u8>,
    /// What was taken from the buffer already.
    read: usize,
}

impl Frames {
    /// The next message, nothing when more has to come first, or what is wrong with it.
    pub(super) fn next(&mut self) -> Result<Option<FromProcess>, String> {
        let rest = &self.buffer[self.read..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(self.wait()) };
        if length.iter().all(|byte| is_text(*byte)) {
            return Err(text_instead(&self.buffer[self.read..]));
        }
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(format!("a frame of {length} bytes; at most {MAX_FRAME} are allowed"));
        }
        let Some(body) = rest.get(..length) else { return Ok(self.wait()) };
        let mut from = rmp_serde::Deserializer::from_read_ref(body);
        let message =
            FromProcess::deserialize(&mut from).map_err(|error| format!("a frame that means nothing: {error}"))?;
        self.read += LENGTH + length;
        Ok(Some(message))
    }

    fn wait(&mut self) -> Option<FromProcess> {
        self.buffer.drain(..self.read);
        self.read = 0;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn bytes(message: &Value) -> Vec<u8> {
        let body = rmp_serde::to_vec_named(message).expect("MessagePack");
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    }

    #[test]
    fn frames_may_come_in_pieces() {
        let all = [
            bytes(&json!({ "type": "hello", "version": 1, "task_types": ["a"] })),
            bytes(&json!({ "type": "heartbeat" })),
            bytes(&json!({ "type": "done", "id": "x", "result": { "n": [1, 2.5, null, "ü"] } })),
        ]
        .concat();
        for size in [1, 3, 7, all.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in all.chunks(size) {
                frames.buffer.extend_from_slice(piece);
                while let Some(message) = frames.next().expect("good frames") {
                    found.push(message);
                }
            }
            let [FromProcess::Hello { .. }, FromProcess::Heartbeat { id: None }, FromProcess::Done { result, .. }] =
                &found[..]
            else {
                panic!("{found:?}")
            };
            assert_eq!(result, &json!({ "n": [1, 2.5, null, "ü"] }));
            assert!(frames.buffer.is_empty());
        }
    }

    #[test]
    fn bad_frames_are_told_apart() {
        let problem = |bytes: Vec<u8>| Frames { buffer: bytes, read: 0 }.next().expect_err("must be refused");
        assert!(problem(vec![0xff; 8]).contains("a frame of"));
        let told = problem(b"hello, world\n".to_vec());
        assert!(told.contains("\"hello, world\\n\"") && told.contains("standard output"), "{told}");
        assert!(u32::from_be_bytes([b'\t'; LENGTH]) as usize > MAX_FRAME, "no frame looks like text");
        assert!(problem(b"\0\0\0\x05hello".to_vec()).contains("means nothing"));
        assert!(problem(bytes(&json!({ "type": "nonsense" }))).contains("nonsense"));
        assert!(problem(bytes(&json!({ "type": "done", "id": "x", "reslut": 1 }))).contains("reslut"));
    }

    proptest! {
        #[test]
        fn anything_is_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames { buffer: bytes, read: 0 };
            while let Ok(Some(_)) = frames.next() {}
        }
    }
}
