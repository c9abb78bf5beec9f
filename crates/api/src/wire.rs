//! How messages are taken from bytes.

use prost::{DecodeError, Message};

pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, DecodeError> {
    M::decode(bytes)
}
