//! What people write: the configuration and the values of options.

use crate::{
    engine::{Target, Trace},
    rng::Rng,
};
use hodei::{config::Config, config::DEFAULTS, values};

/// A configuration file.
pub struct Configuration;

const VALUES: [&str; 16] = [
    "'1s'",
    "'1e308'",
    "'99999999999999999999y'",
    "'18446744073709551616'",
    "'NaN'",
    "''",
    "-1",
    "9223372036854775807",
    "1e400",
    "[]",
    "{}",
    "1979-05-27T07:32:00Z",
    "'127.0.0.1:0'",
    "'16EiB'",
    "\"\\u0000\"",
    "true",
];

impl Target for Configuration {
    fn name(&self) -> &'static str {
        "configuration"
    }

    fn seeds(&self, _: &mut Rng) -> Vec<Vec<u8>> {
        let sections = DEFAULTS.split_inclusive("\n\n").map(|part| part.as_bytes().to_vec());
        sections.chain([DEFAULTS.as_bytes().to_vec(), b"[server]\nlease = '1s'\n".to_vec()]).collect()
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.once_in(40) {
            let opening = *rng.pick(&["a=[", "a={a=", "[a.", "a.", "[["]).unwrap_or(&"");
            return opening.repeat(rng.below(20_000)).into_bytes();
        }
        let mut text = String::new();
        for line in DEFAULTS.lines().filter(|line| !line.starts_with('#')) {
            match line.split_once(" = ") {
                Some(_) if rng.once_in(3) => {}
                // Few of the many, so that some of what is made is good.
                None if rng.once_in(40) => {}
                Some((name, _)) if rng.once_in(20) => {
                    let value = rng.pick(&VALUES).unwrap_or(&"");
                    text.push_str(&format!("{name} = {value}\n"));
                }
                _ => text.extend([line, "\n"]),
            }
        }
        text.into_bytes()
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        // The file is read as text; what is not is refused there.
        let Ok(text) = std::str::from_utf8(input) else { return };
        match Config::from_text(text) {
            Ok(config) => {
                trace.accepted();
                _ = config.data_folder(None);
            }
            Err(error) => {
                let text = format!("{error:#}");
                trace.say(text.lines().last().unwrap_or_default());
            }
        }
    }

    fn memory(&self, length: usize) -> usize {
        (4 << 20) + 512 * length
    }
}

/// Lengths of time, sizes, cores and variables.
pub struct Values;

impl Target for Values {
    fn name(&self) -> &'static str {
        "values"
    }

    fn seeds(&self, _: &mut Rng) -> Vec<Vec<u8>> {
        let texts = ["500ms", "10s", "5m", "1.5", "1h 2m", "512MiB", "2GB", "0.5", "NAME=VALUE", "PATH", "1e9", "inf"];
        texts.map(|text| text.as_bytes().to_vec()).into()
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        const UNITS: [&str; 16] =
            ["ms", "s", "m", "h", "days", "y", "ns", "KiB", "MB", "EiB", "PB", "e", "e308", ".5", "=", " "];
        let mut text = if rng.once_in(10) { "-".to_owned() } else { String::new() };
        for _ in 0..=rng.below(3) {
            text.push_str(&rng.odd().to_string());
            text.push_str(rng.pick(&UNITS).unwrap_or(&""));
        }
        text.into_bytes()
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let outcomes = [
            values::length(text).map(|length| _ = length.duration()),
            values::size(text).map(drop),
            values::cores(text).map(drop),
            values::variable(text).map(drop),
        ];
        for outcome in outcomes {
            match outcome {
                Ok(()) => {
                    trace.say("good");
                    trace.accepted();
                }
                Err(error) => trace.say(&error),
            }
        }
    }
}
