//! How bytes become messages. Two bytes on the wire can be a whole job with nothing in it, which takes hundreds in memory:
//! a request of the allowed size could take all that a machine has. So the parts of a message are counted before any of
//! them is made.

use crate::v1;
use bytes::{Buf, Bytes};
use prost::{DecodeError, Message};
use std::{any::Any, marker::PhantomData};
use thiserror::Error;
use tonic::{
    Status,
    codec::{self, DecodeBuf},
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
    fn parts_of_every_kind_are_counted() {
        let bytes = [0x08, 0x96, 0x01, 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0x1a, 1, 9, 0x25, 1, 2, 3, 4, 0x2b];
        assert_eq!((parts(&bytes, 3), parts(&bytes, 9)), (3, 4));
        assert_eq!(parts(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 9), 0);
    }
}
