//! Protobuf messages made from the descriptors that the server itself serves: a field that is added to a `.proto` file
//! is tried from then on without a change here.

use crate::{
    mutate::{LONGEST, varint},
    rng::Rng,
};
use hodei_api::logs::{Encoder, Entry};
use prost::Message;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};
use std::collections::BTreeMap;
use uuid::Uuid;

/// All messages and methods.
#[derive(Debug)]
pub struct Schema {
    messages: BTreeMap<String, DescriptorProto>,
    enums: BTreeMap<String, Vec<i32>>,
    pub methods: Vec<Method>,
}

#[derive(Clone, Debug)]
pub struct Method {
    /// As in the path of a request: `/hodei.v1.Service/Method`.
    pub path: String,
    pub input: String,
    pub streams: bool,
}

/// What the messages talk about.
#[derive(Clone, Debug, Default)]
pub struct Words {
    /// Jobs, executions and workers that the target knows.
    pub ids: Vec<Uuid>,
    /// The credential of a worker, where one is needed.
    pub session: String,
}

const WIRE_VARINT: u64 = 0;
const WIRE_FIXED64: u64 = 1;
const WIRE_BYTES: u64 = 2;
const WIRE_FIXED32: u64 = 5;
const DEEPEST: usize = 6;

const KINDS: [&str; 4] = ["exit_code", "run_timeout", "worker_lost", "out_of_memory"];
const TEXTS: [&str; 12] = [
    "true",
    "default",
    "a b",
    "/usr/bin/env",
    "HODEI_JOB_ID",
    "A=B",
    "two\nlines",
    "\0",
    "\u{feff}ünïcödé \u{202e}\u{1f980}",
    "-1",
    "99999999999999999999999999",
    "../../etc/passwd",
];

impl Schema {
    pub fn new() -> Self {
        let files = FileDescriptorSet::decode(hodei_api::DESCRIPTORS).unwrap_or_default().file;
        let mut schema = Self { messages: BTreeMap::new(), enums: BTreeMap::new(), methods: Vec::new() };
        for file in files {
            let package = format!(".{}", file.package());
            for message in &file.message_type {
                schema.add(&package, message);
            }
            for named in &file.enum_type {
                let numbers = named.value.iter().map(|value| value.number()).collect();
                schema.enums.insert(format!("{package}.{}", named.name()), numbers);
            }
            for service in &file.service {
                schema.methods.extend(service.method.iter().map(|method| Method {
                    path: format!("/{}.{}/{}", file.package(), service.name(), method.name()),
                    input: method.input_type().to_owned(),
                    streams: method.client_streaming(),
                }));
            }
        }
        schema
    }

    fn add(&mut self, outer: &str, message: &DescriptorProto) {
        let name = format!("{outer}.{}", message.name());
        message.nested_type.iter().for_each(|nested| self.add(&name, nested));
        self.messages.insert(name, message.clone());
    }

    /// Good messages of this type: enough that every way to choose in its parts is among them.
    pub fn good(&self, name: &str, words: &Words, rng: &mut Rng) -> Vec<Vec<u8>> {
        (0..96).map(|_| Writer { schema: self, words, wild: false, excess: false }.message(name, 0, rng)).collect()
    }

    /// A message that has the right shape, and more or less the right contents.
    pub fn wild(&self, name: &str, words: &Words, rng: &mut Rng) -> Vec<u8> {
        // A quarter are good in every way but one: they have too much of something.
        let wild = !rng.once_in(4);
        Writer { schema: self, words, wild, excess: true }.message(name, 0, rng)
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self::new()
    }
}

struct Writer<'a> {
    schema: &'a Schema,
    words: &'a Words,
    wild: bool,
    excess: bool,
}

impl Writer<'_> {
    /// Something goes wrong here, once in so many times.
    fn slips(&self, times: usize, rng: &mut Rng) -> bool {
        self.wild && rng.once_in(times)
    }

    fn message(&self, name: &str, depth: usize, rng: &mut Rng) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(message) = self.schema.messages.get(name).filter(|_| depth < DEEPEST) else { return out };
        if name == ".hodei.v1.LogChunk" && !self.slips(4, rng) {
            return self.log_chunk(rng);
        }
        let chosen: Vec<usize> = (0..message.oneof_decl.len())
            .map(|group| {
                let members = message.field.iter().filter(|field| in_group(field, group)).count();
                rng.below(members)
            })
            .collect();
        let mut place = vec![0; chosen.len()];
        for field in &message.field {
            if let Some(group) = field.oneof_index.and_then(|index| usize::try_from(index).ok())
                && !field.proto3_optional()
            {
                let own = place[group];
                place[group] += 1;
                if own != chosen[group] && !self.slips(8, rng) {
                    continue;
                }
            } else if rng.once_in(4) {
                continue;
            }
            let times = if field.label() == Label::Repeated { rng.below(4) } else { 1 };
            let times = if self.slips(60, rng) { times + 1 } else { times };
            for _ in 0..times {
                self.field(field, depth, rng, &mut out);
            }
            if field.label() == Label::Repeated && self.excess && rng.once_in(if self.wild { 150 } else { 20 }) {
                self.flood(field, depth, rng, &mut out);
            }
        }
        if self.slips(20, rng) {
            // Fields of a later version.
            put_key(&mut out, 1 + rng.below(3000) as u64, WIRE_BYTES);
            let length = rng.below(20);
            put_bytes(&mut out, &rng.bytes(length));
        }
        out
    }

    /// The same element over and over, often an empty one: two bytes that may take hundreds in memory.
    fn flood(&self, field: &FieldDescriptorProto, depth: usize, rng: &mut Rng, out: &mut Vec<u8>) {
        let mut element = Vec::new();
        if rng.once_in(3) {
            let tame = Writer { wild: false, excess: false, ..*self };
            tame.field(field, depth, rng, &mut element);
        } else {
            put_key(&mut element, u64::from(field.number().unsigned_abs()), WIRE_BYTES);
            element.push(0);
        }
        let most = LONGEST.saturating_sub(out.len()) / element.len().max(1);
        out.extend(element.repeat(rng.below(most)));
    }

    fn field(&self, field: &FieldDescriptorProto, depth: usize, rng: &mut Rng, out: &mut Vec<u8>) {
        let number = u64::from(field.number().unsigned_abs());
        if self.slips(60, rng) {
            let wire = *rng.pick(&[WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, 3, 4, WIRE_FIXED32, 6]).unwrap_or(&0);
            put_key(out, number, wire);
            let length = rng.below(10);
            out.extend(rng.bytes(length));
            return;
        }
        match field.r#type() {
            Type::Message => {
                let inner = self.message(field.type_name(), depth + 1, rng);
                put_key(out, number, WIRE_BYTES);
                put_bytes(out, &inner);
            }
            Type::String => {
                put_key(out, number, WIRE_BYTES);
                put_bytes(out, &self.text(field.name(), rng));
            }
            Type::Bytes => {
                put_key(out, number, WIRE_BYTES);
                put_bytes(out, &self.bytes(field.name(), rng));
            }
            Type::Double => {
                put_key(out, number, WIRE_FIXED64);
                let value = if self.wild { f64::from_bits(rng.odd()) } else { rng.below(100) as f64 };
                out.extend_from_slice(&value.to_le_bytes());
            }
            Type::Enum => {
                let known = self.schema.enums.get(field.type_name()).and_then(|numbers| rng.pick(numbers)).copied();
                let value = if self.slips(6, rng) { rng.odd() } else { i64::from(known.unwrap_or(0)) as u64 };
                put_key(out, number, WIRE_VARINT);
                out.extend(varint(value));
            }
            _ => {
                let value = if self.wild && rng.once_in(2) { rng.odd() } else { 1 + rng.below(100) as u64 };
                put_key(out, number, WIRE_VARINT);
                out.extend(varint(value));
            }
        }
    }

    fn text(&self, name: &str, rng: &mut Rng) -> Vec<u8> {
        if self.excess && !self.wild && rng.once_in(20) {
            let start = if name == "working_directory" { "/" } else { "x" };
            return format!("{start}{}", "y".repeat(rng.below(20_000))).into_bytes();
        }
        if self.slips(40, rng) {
            let length = rng.below(5000);
            return if rng.once_in(2) { vec![b'x'; length] } else { rng.bytes(length) };
        }
        let text = match name {
            _ if self.slips(5, rng) => (*rng.pick(&TEXTS).unwrap_or(&"")).to_owned(),
            "page_token" if rng.once_in(2) => format!("{}:{}", self.id(rng), rng.odd()),
            "page_token" => self.id(rng).to_string(),
            name if name.ends_with("_id") || name == "token" => self.id(rng).to_string(),
            "fatal_kinds" | "kind" => (*rng.pick(&KINDS).unwrap_or(&"")).to_owned(),
            "working_directory" => "/tmp".to_owned(),
            "key" => format!("VARIABLE_{}", rng.below(100)),
            "value" => "long enough".to_owned(),
            _ => format!("text {}", rng.below(10)),
        };
        text.into_bytes()
    }

    fn bytes(&self, name: &str, rng: &mut Rng) -> Vec<u8> {
        if self.slips(12, rng) {
            let length = rng.below(40);
            return rng.bytes(length);
        }
        match name {
            "stdin" => b"input".to_vec(),
            "result" => b"{\"a\":[1,2.5e3,null]}".to_vec(),
            "data" => chunk(rng).0,
            _ => self.id(rng).as_bytes().to_vec(),
        }
    }

    /// One that the target knows, mostly.
    fn id(&self, rng: &mut Rng) -> Uuid {
        match self.words.ids.is_empty() || rng.once_in(8) {
            true => Uuid::from_u128(rng.odd().into()),
            false => *rng.pick(&self.words.ids).unwrap_or(&Uuid::nil()),
        }
    }

    /// Its number of entries must be right, which fields that are filled one by one never are.
    fn log_chunk(&self, rng: &mut Rng) -> Vec<u8> {
        let (data, count) = chunk(rng);
        let first = if self.slips(3, rng) { rng.odd() } else { 0 };
        let (job_id, execution_id) = (self.id(rng).as_bytes().to_vec(), self.id(rng).as_bytes().to_vec());
        hodei_api::v1::LogChunk { job_id, execution_id, first, count, data: data.into() }.encode_to_vec()
    }
}

/// An honest chunk and the number of its entries.
pub fn chunk(rng: &mut Rng) -> (Vec<u8>, u32) {
    let mut encoder = Encoder::default();
    let mut at_ms = 1_700_000_000_000;
    let most = if rng.once_in(20) { 2000 } else { 8 };
    for _ in 0..1 + rng.below(most) {
        at_ms += rng.below(1000) as i64;
        let length = rng.below(60);
        let text = if rng.once_in(2) { vec![b'a'; length] } else { rng.bytes(length) };
        encoder.push(Entry { at_ms, stderr: rng.once_in(3), unfinished: rng.once_in(9), text: &text });
    }
    encoder.finish()
}

fn in_group(field: &FieldDescriptorProto, group: usize) -> bool {
    !field.proto3_optional() && field.oneof_index.is_some_and(|index| usize::try_from(index) == Ok(group))
}

fn put_key(out: &mut Vec<u8>, number: u64, wire: u64) {
    out.extend(varint(number << 3 | wire));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(varint(bytes.len() as u64));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodei_api::v1;

    #[test]
    fn good_messages_are_good() {
        let (schema, words, mut rng) = (Schema::new(), Words::default(), Rng::new(1));
        for bytes in schema.good(".hodei.v1.QueueJobsRequest", &words, &mut rng) {
            v1::QueueJobsRequest::decode(&bytes[..]).expect("decodes");
        }
        let events = schema.good(".hodei.v1.WorkerMessage", &words, &mut rng).into_iter();
        let events = events.flat_map(|bytes| v1::WorkerMessage::decode(&bytes[..]).expect("decodes").events);
        let kinds: std::collections::HashSet<_> =
            events.filter_map(|event| event.kind).map(|kind| std::mem::discriminant(&kind)).collect();
        assert_eq!(kinds.len(), 9, "every variant is made");
    }

    #[test]
    fn every_service_is_known() {
        let services: std::collections::BTreeSet<_> =
            Schema::new().methods.iter().map(|method| method.path.split('/').nth(1).map(str::to_owned)).collect();
        assert_eq!(services.len(), 12);
    }
}
