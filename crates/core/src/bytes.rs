//! How bytes are written in records: as bytes, not as lists of numbers.

use serde::{Deserializer, Serializer, de};
use std::{fmt, marker::PhantomData};

pub fn serialize<S: Serializer>(bytes: &(impl AsRef<[u8]> + ?Sized), serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes.as_ref())
}

pub fn deserialize<'de, B: for<'a> From<&'a [u8]>, D: Deserializer<'de>>(deserializer: D) -> Result<B, D::Error> {
    deserializer.deserialize_bytes(Bytes(PhantomData))
}

struct Bytes<B>(PhantomData<B>);

impl<'de, B: for<'a> From<&'a [u8]>> de::Visitor<'de> for Bytes<B> {
    type Value = B;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<B, E> {
        Ok(bytes.into())
    }
}

/// The same where there may be none.
pub mod optional {
    use super::{Bytes, PhantomData, de, fmt};
    use serde::{Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(bytes: &Option<impl AsRef<[u8]>>, serializer: S) -> Result<S::Ok, S::Error> {
        struct Written<'a>(&'a [u8]);
        impl Serialize for Written<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(self.0)
            }
        }
        bytes.as_ref().map(|bytes| Written(bytes.as_ref())).serialize(serializer)
    }

    pub fn deserialize<'de, B: for<'a> From<&'a [u8]>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<B>, D::Error> {
        struct Optional<B>(PhantomData<B>);
        impl<'de, B: for<'a> From<&'a [u8]>> de::Visitor<'de> for Optional<B> {
            type Value = Option<B>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("bytes or nothing")
            }

            fn visit_none<E: de::Error>(self) -> Result<Option<B>, E> {
                Ok(None)
            }

            fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<Option<B>, D::Error> {
                some.deserialize_bytes(Bytes(PhantomData)).map(Some)
            }
        }
        deserializer.deserialize_option(Optional(PhantomData))
    }
}
