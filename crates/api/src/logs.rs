//! The codec of log chunks: many entries in one compressed block. The format is described in `logs.proto`.

use thiserror::Error;

/// Text longer than this is split over several entries.
pub const MAX_TEXT: usize = 64 << 10;
/// A chunk is closed when its entries reach this size.
pub const CHUNK_BYTES: usize = 128 << 10;
/// No honest chunk unpacks to more: a full one, and one more entry with its header.
const MAX_UNPACKED: usize = CHUNK_BYTES + MAX_TEXT + 64;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const STDERR: u8 = 1;
const UNFINISHED: u8 = 2;

/// One line, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub at_ms: i64,
    pub stderr: bool,
    /// The line goes on in the next entry of the same stream, or the output ended without a newline.
    pub unfinished: bool,
    pub text: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadChunk {
    #[error("the chunk is cut short")]
    Truncated,
    #[error("the chunk is packed in an unknown way ({0})")]
    Packing(u8),
    #[error("the chunk does not unpack")]
    Corrupt,
    #[error("the chunk unpacks to more than is allowed")]
    TooLarge,
    #[error("the chunk says it has {said} entries and has {found}")]
    Count { said: u32, found: u32 },
}

/// Collects entries until they make a chunk.
#[derive(Debug, Default)]
pub struct Encoder {
    plain: Vec<u8>,
    count: u32,
    last_ms: i64,
}

impl Encoder {
    pub fn push(&mut self, entry: Entry<'_>) {
        let flags = (u8::from(entry.stderr) * STDERR) | (u8::from(entry.unfinished) * UNFINISHED);
        self.plain.push(flags);
        let since = if self.count == 0 { entry.at_ms } else { entry.at_ms - self.last_ms };
        put_number(&mut self.plain, u64::try_from(since).unwrap_or(0));
        self.last_ms = if self.count == 0 { entry.at_ms } else { self.last_ms.max(entry.at_ms) };
        put_number(&mut self.plain, entry.text.len() as u64);
        self.plain.extend_from_slice(entry.text);
        self.count += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn is_full(&self) -> bool {
        self.plain.len() >= CHUNK_BYTES
    }

    /// The chunk's data and its number of entries; the encoder is empty afterwards.
    pub fn finish(&mut self) -> (Vec<u8>, u32) {
        let data = pack(&self.plain);
        let count = std::mem::take(&mut self.count);
        self.plain.clear();
        (data, count)
    }
}

/// Small chunks, and those that do not shrink, stay as they are.
fn pack(plain: &[u8]) -> Vec<u8> {
    if plain.len() >= 64 {
        let bound = lz4_flex::block::get_maximum_output_size(plain.len());
        let mut packed = vec![0; 5 + bound];
        packed[0] = LZ4;
        packed[1..5].copy_from_slice(&u32::try_from(plain.len()).unwrap_or(u32::MAX).to_le_bytes());
        if let Ok(size) = lz4_flex::block::compress_into(plain, &mut packed[5..])
            && size + 5 < plain.len()
        {
            packed.truncate(5 + size);
            return packed;
        }
    }
    let mut data = Vec::with_capacity(1 + plain.len());
    data.push(PLAIN);
    data.extend_from_slice(plain);
    data
}

/// An unpacked chunk.
#[derive(Debug)]
pub struct Chunk {
    plain: Vec<u8>,
}

impl Chunk {
    /// Unpacks and checks a chunk that claims to hold `count` entries. Whatever the bytes are, this neither panics nor
    /// takes more memory than an honest chunk.
    pub fn decode(data: &[u8], count: u32) -> Result<Self, BadChunk> {
        let chunk = Self { plain: unpack(data)? };
        let mut found = 0;
        let mut entries = chunk.entries();
        while entries.try_next()?.is_some() {
            found += 1;
        }
        if found != count {
            return Err(BadChunk::Count { said: count, found });
        }
        Ok(chunk)
    }

    pub fn entries(&self) -> Entries<'_> {
        Entries { rest: &self.plain, last_ms: 0, first: true }
    }
}

fn unpack(data: &[u8]) -> Result<Vec<u8>, BadChunk> {
    let (packing, body) = data.split_first().ok_or(BadChunk::Truncated)?;
    match *packing {
        PLAIN if body.len() <= MAX_UNPACKED => Ok(body.to_vec()),
        PLAIN => Err(BadChunk::TooLarge),
        LZ4 => {
            let (size, block) = body.split_first_chunk::<4>().ok_or(BadChunk::Truncated)?;
            let size = u32::from_le_bytes(*size) as usize;
            if size > MAX_UNPACKED {
                return Err(BadChunk::TooLarge);
            }
            lz4_flex::block::decompress(block, size).map_err(|_| BadChunk::Corrupt)
        }
        other => Err(BadChunk::Packing(other)),
    }
}

#[derive(Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    last_ms: i64,
    first: bool,
}

impl<'a> Entries<'a> {
    fn try_next(&mut self) -> Result<Option<Entry<'a>>, BadChunk> {
        let Some((flags, rest)) = self.rest.split_first() else { return Ok(None) };
        let (since, rest) = take_number(rest)?;
        let (length, rest) = take_number(rest)?;
        let length = usize::try_from(length).map_err(|_| BadChunk::Truncated)?;
        let (text, rest) = rest.split_at_checked(length).ok_or(BadChunk::Truncated)?;
        let since = i64::try_from(since).map_err(|_| BadChunk::Corrupt)?;
        self.last_ms = if self.first { since } else { self.last_ms.saturating_add(since) };
        self.first = false;
        self.rest = rest;
        let (stderr, unfinished) = (flags & STDERR != 0, flags & UNFINISHED != 0);
        Ok(Some(Entry { at_ms: self.last_ms, stderr, unfinished, text }))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        self.try_next().ok().flatten()
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &[u8]) -> Result<(u64, &[u8]), BadChunk> {
    let mut number = 0u64;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f).checked_shl(7 * i as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok((number, &bytes[i + 1..]));
        }
    }
    Err(BadChunk::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            lines in prop::collection::vec((any::<bool>(), any::<bool>(), 0i64..1000, prop::collection::vec(any::<u8>(), 0..300)), 1..200)
        ) {
            let mut encoder = Encoder::default();
            let mut at_ms = 1_700_000_000_000;
            let mut want = Vec::new();
            for (stderr, unfinished, step, text) in &lines {
                at_ms += step;
                let entry = Entry { at_ms, stderr: *stderr, unfinished: *unfinished, text };
                encoder.push(entry);
                want.push(entry);
            }
            let (data, count) = encoder.finish();
            let chunk = Chunk::decode(&data, count).expect("our own chunk");
            prop_assert_eq!(chunk.entries().collect::<Vec<_>>(), want);
            prop_assert!(Chunk::decode(&data, count + 1).is_err());
        }

        #[test]
        fn garbage_is_refused_without_harm(data in prop::collection::vec(any::<u8>(), 0..500), count: u32) {
            _ = Chunk::decode(&data, count);
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let mut bomb = vec![LZ4];
        bomb.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Chunk::decode(&bomb, 1).err(), Some(BadChunk::TooLarge));
    }
}
