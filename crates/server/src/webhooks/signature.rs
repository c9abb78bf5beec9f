//! Signatures of Standard Webhooks: HMAC-SHA256 over the id, the time and the body.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use hodei_core::spec::Secret;
use sha2::Sha256;
use std::fmt;
use uuid::Uuid;

const PREFIX: &str = "whsec_";
/// How long a secret may be, in bytes.
const FEWEST: usize = 24;
const MOST: usize = 64;

/// What messages are signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl Key {
    /// Nobody else has it: 244 random bits.
    pub fn random() -> Self {
        Self([Uuid::new_v4(), Uuid::new_v4()].iter().flat_map(|part| *part.as_bytes()).collect())
    }

    pub fn parse(secret: &str) -> Result<Self, String> {
        let text = secret.trim().strip_prefix(PREFIX).ok_or("must begin with whsec_")?;
        let bytes = STANDARD.decode(text).map_err(|_| "must be base64 after whsec_")?;
        match bytes.len() {
            FEWEST..=MOST => Ok(Self(bytes)),
            length => Err(format!("has {length} bytes; it must have between {FEWEST} and {MOST}")),
        }
    }

    /// As receivers are given it.
    pub fn secret(&self) -> Secret {
        Secret(format!("{PREFIX}{}", STANDARD.encode(&self.0)))
    }

    /// The value of the header `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { unreachable!("a key may have any length") };
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the specification gives.
    #[test]
    fn the_signature_is_that_of_the_specification() {
        let key = Key::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        let body = br#"{"test": 2432232314}"#;
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_what_it_was_and_is_never_shown() {
        let key = Key::random();
        assert_ne!(key, Key::random());
        assert_eq!(Key::parse(&key.secret().0), Ok(key.clone()));
        assert_eq!(format!("{key:?}"), "Key(***)");
    }

    #[test]
    fn secrets_that_are_none_are_refused() {
        for wrong in ["", "whsec_", "secret", "whsec_!", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(Key::parse(wrong).is_err(), "{wrong}");
        }
    }
}
