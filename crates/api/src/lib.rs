//! The wire: gRPC types and services, and their conversions to and from `hodei-core`. No other crate knows a wire
//! format, neither that of the stream nor that of log chunks.

pub mod channel;
pub mod convert;
pub mod gather;
pub mod json;
pub mod logs;
pub mod wire;

/// Generated from `proto/hodei/v1`.
#[allow(clippy::large_enum_variant, reason = "messages are as large as they are")]
pub mod v1 {
    tonic::include_proto!("hodei.v1");
}

/// Describes the services to clients that ask by reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hodei.v1.bin"));
