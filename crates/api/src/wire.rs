//! How bytes become messages. Two bytes on the wire can be a whole job with nothing in it, which takes hundreds in memory:
//! a request of the allowed size could take all that a machine has. So the parts of a message are counted before any of
//! them is made.

use crate::v1;
use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{self, WireType},
};
use std::{any::Any, marker::PhantomData};
use thiserror::Error;
use tonic::{
    Status,
    codec::{self, DecodeBuf, EncodeBuf},
};
use tonic_prost::ProstEncoder;

/// Any message may have this many parts, and more when they are not all but empty.
const PARTS: usize = 16 << 10;
/// Those of the largest honest one, a request with jobs.
const JOBS: usize = 10_000;
const BYTES_FOR_ANOTHER: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadMessage {
    #[error("the message has too many parts for its size")]
    Parts,
    #[error(transparent)]
    Protobuf(#[from] DecodeError),
}

/// Takes a message of any of our services.
pub fn decode<M: Message + Default + 'static>(bytes: Bytes) -> Result<M, BadMessage> {
    let most = PARTS + bytes.len() / BYTES_FOR_ANOTHER;
    // A part has two bytes at least, so most messages need not be looked at.
    if bytes.len() / 2 > most && parts(&bytes, most + 1) > most {
        return Err(BadMessage::Parts);
    }
    let mut message = M::default();
    // A job is large in memory, as are events, and the list of them is not to be moved each time that it has grown.
    let any = &mut message as &mut dyn Any;
    if let Some(request) = any.downcast_mut::<v1::QueueJobsRequest>() {
        request.jobs.reserve_exact(parts(&bytes, JOBS));
    } else if let Some(message) = any.downcast_mut::<v1::WorkerMessage>() {
        message.events.reserve_exact(parts(&bytes, JOBS));
    }
    message.merge(bytes)?;
    Ok(message)
}

/// How many fields a message has, up to `most`, not counting those of messages in it, nor what follows the first that makes
/// no sense.
fn parts(bytes: &[u8], most: usize) -> usize {
    std::iter::successors(after_field(bytes), |rest| after_field(rest)).take(most).count()
}

fn after_field(bytes: &[u8]) -> Option<&[u8]> {
    let (key, rest) = varint(bytes)?;
    match key & 7 {
        0 => varint(rest).map(|(_, rest)| rest),
        1 => rest.get(8..),
        2 => {
            let (length, rest) = varint(rest)?;
            rest.get(usize::try_from(length).ok()?..)
        }
        5 => rest.get(4..),
        _ => None,
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let last = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let number = bytes[..=last].iter().rev().fold(0u64, |number, byte| number << 7 | u64::from(byte & 0x7f));
    Some((number, &bytes[last + 1..]))
}

/// The codec of all services: prost's, with [`decode`] in it.
#[derive(Clone, Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Decoder<U> {
        Decoder(PhantomData)
    }
}

#[derive(Clone, Debug)]
pub struct Decoder<U>(PhantomData<U>);

impl<U: Message + Default + 'static> codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        match decode(bytes) {
            Ok(message) => Ok(Some(message)),
            Err(bad @ BadMessage::Parts) => Err(Status::resource_exhausted(bad.to_string())),
            Err(bad @ BadMessage::Protobuf(_)) => Err(Status::internal(bad.to_string())),
        }
    }
}

/// A [`v1::WorkerMessage`] in its encoded form, to which one event after the other is added. What a worker has spooled
/// is encoded already, and goes out as it is.
#[derive(Clone, Debug, Default)]
pub struct WorkerMessage {
    bytes: Vec<u8>,
    events: usize,
}

impl WorkerMessage {
    /// The number of its field in the message.
    const EVENTS: u32 = 1;

    pub fn push(&mut self, event: &v1::WorkerEvent) {
        encoding::message::encode(Self::EVENTS, event, &mut self.bytes);
        self.events += 1;
    }

    pub fn push_encoded(&mut self, event: &[u8]) {
        encoding::encode_key(Self::EVENTS, WireType::LengthDelimited, &mut self.bytes);
        encoding::encode_varint(event.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(event);
        self.events += 1;
    }

    /// How many events are in it.
    pub fn len(&self) -> usize {
        self.events
    }

    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.events = 0;
    }
}

/// The codec of the worker's side of its stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerCodec;

impl codec::Codec for WorkerCodec {
    type Encode = WorkerMessage;
    type Decode = v1::ServerMessage;
    type Encoder = Self;
    type Decoder = Decoder<v1::ServerMessage>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Decoder<v1::ServerMessage> {
        Decoder(PhantomData)
    }
}

impl codec::Encoder for WorkerCodec {
    type Item = WorkerMessage;
    type Error = Status;

    fn encode(&mut self, message: WorkerMessage, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message.bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_parts_by_the_thousand_are_refused() {
        let flood = |times| decode::<v1::QueueJobsRequest>([0x0a, 0].repeat(times).into());
        assert_eq!(flood(10_000).map(|request| request.jobs.len()), Ok(10_000));
        assert_eq!(flood(1_000_000).err(), Some(BadMessage::Parts));
    }

    #[test]
    fn many_parts_with_something_in_them_are_taken() {
        let ids = vec!["0193c7a0-0000-7000-8000-000000000000".to_owned(); 200_000];
        let bytes = v1::QueueJobsResponse { job_ids: ids.clone(), existed: Vec::new() }.encode_to_vec();
        assert_eq!(decode::<v1::QueueJobsResponse>(bytes.into()).map(|answer| answer.job_ids), Ok(ids));
    }

    #[test]
    fn a_message_is_the_same_whichever_way_its_events_were_added() {
        use v1::worker_event::Kind;
        let kinds = [Kind::Heartbeat(v1::Heartbeat { sent: 7 }), Kind::Leaving(v1::Leaving {})];
        let started = v1::Started { execution_id: vec![9; 16].into(), at_ms: 1 };
        let kinds = kinds.into_iter().chain([Kind::Started(started)]);
        let events: Vec<_> = kinds.map(|kind| v1::WorkerEvent { kind: Some(kind) }).collect();
        let mut message = WorkerMessage::default();
        events.iter().for_each(|event| message.push(event));
        events.iter().for_each(|event| message.push_encoded(&event.encode_to_vec()));
        let whole = v1::WorkerMessage { events: [events.clone(), events].concat() };
        assert_eq!((message.len(), message.bytes), (6, whole.encode_to_vec()));
    }

    #[test]
    fn parts_of_every_kind_are_counted() {
        let bytes = [0x08, 0x96, 0x01, 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0x1a, 1, 9, 0x25, 1, 2, 3, 4, 0x2b];
        assert_eq!((parts(&bytes, 3), parts(&bytes, 9)), (3, 4));
        assert_eq!(parts(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 9), 0);
    }
}
