//! The loop: makes inputs, feeds them to a target, and watches for panics, memory and time.
//!
//! There is no coverage to steer by on a stable toolchain. What the target says of an input stands in for it: an input
//! that makes the target say something new is kept, and others are bred from it.

use crate::{
    alloc,
    mutate::{LONGEST, minimise, mutate},
    rng::Rng,
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    cell::RefCell,
    collections::HashSet,
    fmt,
    fmt::Write,
    panic::{self, AssertUnwindSafe},
    sync::Once,
    time::{Duration, Instant},
};

/// Something that takes bytes from outside.
pub trait Target {
    fn name(&self) -> &'static str;

    /// Inputs that are good, one of every kind.
    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>>;

    /// An input with the right structure and anything in it.
    fn generate(&self, rng: &mut Rng) -> Vec<u8>;

    /// Takes the input, and says on the way what became of it. A panic is a failure.
    fn run(&mut self, input: &[u8], trace: &mut Trace);

    /// The most memory that an input of this length may take at any time.
    fn memory(&self, length: usize) -> usize {
        (16 << 20) + 64 * length
    }
}

/// No input may keep a processor busy for longer.
const LONGEST_TIME: Duration = Duration::from_secs(1);
/// Inputs that are kept for breeding.
const CORPUS: usize = 4000;

/// What a target said of one input.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    accepted: bool,
}

impl Trace {
    /// Only words count. Numbers, and what stands in quotes, come from the input: they make nothing new.
    pub fn say(&mut self, text: &str) {
        let unquoted = text.split(['\'', '`', '"']).step_by(2);
        let words = unquoted.flat_map(|part| part.split(|c: char| !c.is_ascii_alphabetic()));
        for byte in words.filter(|word| word.len() >= 3).flat_map(str::bytes).chain([0]) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn refused(&mut self, error: &dyn fmt::Display) {
        self.say(&error.to_string());
    }

    /// The input was good as far as this target can tell.
    pub fn accepted(&mut self) {
        self.accepted = true;
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub inputs: u64,
    pub time: Duration,
}

/// What a run saw.
#[derive(Debug)]
pub struct Summary {
    pub target: &'static str,
    pub inputs: u64,
    pub accepted: u64,
    pub outcomes: usize,
    pub took: Duration,
    /// The most memory that one input took.
    pub peak: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, inputs, accepted, outcomes, took, peak } = self;
        let speed = *inputs as f64 / took.as_secs_f64().max(0.001);
        let kib = peak >> 10;
        write!(
            f,
            "{target}: {inputs} inputs, {speed:.0} a second, {accepted} good, {outcomes} outcomes, peak {kib} KiB"
        )
    }
}

/// An input that did harm.
#[derive(Debug)]
pub struct Failure {
    pub target: &'static str,
    pub seed: u64,
    pub iteration: u64,
    pub why: String,
    pub input: Vec<u8>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, seed, iteration, why, input } = self;
        let hex = hex(input);
        writeln!(f, "{target}: {why}")?;
        writeln!(f, "  seed {seed}, input {iteration}, {} bytes once minimised: {hex}", input.len())?;
        writeln!(f, "  again with: cargo xtask fuzz --target {target} --input {hex}")?;
        write!(f, "  the whole run with: cargo xtask fuzz --target {target} --from {seed} --inputs {iteration}")
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// Runs a target until the plan is done or an input does harm.
pub fn run(target: &mut dyn Target, plan: Plan) -> Result<Summary, Box<Failure>> {
    let mut rng = Rng::new(plan.seed);
    let mut corpus = target.seeds(&mut rng);
    let mut seen = HashSet::new();
    let began = Instant::now();
    let mut summary =
        Summary { target: target.name(), inputs: 0, accepted: 0, outcomes: 0, took: Duration::ZERO, peak: 0 };
    let good = corpus.len() as u64;
    while summary.inputs < plan.inputs && (summary.inputs < good || began.elapsed() < plan.time) {
        // Every good input is tried as it is, first.
        let input = match corpus.get(summary.inputs as usize).filter(|_| summary.inputs < good) {
            Some(seed) => seed.clone(),
            None => breed(target, &corpus, &mut rng),
        };
        summary.inputs += 1;
        match attempt(target, &input) {
            Ok((trace, peak)) => {
                summary.peak = summary.peak.max(peak);
                summary.accepted += u64::from(trace.accepted);
                if seen.insert(trace.hash) && corpus.len() < CORPUS && input.len() <= 8 << 10 {
                    corpus.push(input);
                }
            }
            Err(why) => return Err(Box::new(failure(target, plan.seed, summary.inputs, why, &input))),
        }
    }
    summary.outcomes = seen.len();
    summary.took = began.elapsed();
    Ok(summary)
}

fn breed(target: &dyn Target, corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let other = rng.pick(corpus).cloned().unwrap_or_default();
    let mut input = match rng.below(20) {
        0 => {
            let length = if rng.once_in(50) { rng.below(LONGEST) } else { rng.below(200) };
            return rng.bytes(length);
        }
        1..=6 => return target.generate(rng),
        7..=10 => target.generate(rng),
        _ => rng.pick(corpus).cloned().unwrap_or_default(),
    };
    mutate(&mut input, &other, rng);
    input
}

/// Feeds one input; says what was wrong with it if it did harm.
pub fn attempt(target: &mut dyn Target, input: &[u8]) -> Result<(Trace, usize), String> {
    listen_for_panics();
    let name = target.name();
    let mut trace = Trace::default();
    let began = cpu_time();
    let work = || panic::catch_unwind(AssertUnwindSafe(|| target.run(input, &mut trace)));
    WATCHED.with_borrow_mut(|watched| *watched = Some(String::new()));
    let (done, peak) = alloc::watch(name, input, work);
    let said = WATCHED.with_borrow_mut(Option::take).unwrap_or_default();
    let took = cpu_time().saturating_sub(began);
    if done.is_err() {
        return Err(format!("panicked: {said}"));
    }
    let most = target.memory(input.len());
    if peak > most {
        return Err(format!(
            "took {peak} bytes of memory for {} bytes of input; at most {most} are right",
            input.len()
        ));
    }
    if took > LONGEST_TIME {
        return Err(format!("took {took:?} of processor time"));
    }
    Ok((trace, peak))
}

fn failure(target: &mut dyn Target, seed: u64, iteration: u64, why: String, input: &[u8]) -> Failure {
    // Of the same kind: a shorter input must not be kept because it does some other harm.
    let kind = |why: &str| why.split([' ', ':']).next().map(str::to_owned);
    let wanted = kind(&why);
    let still = |input: &[u8]| attempt(target, input).err().is_some_and(|other| kind(&other) == wanted);
    let smallest = minimise(input, still);
    let why = attempt(target, &smallest).err().unwrap_or(why);
    Failure { target: target.name(), seed, iteration, why, input: smallest }
}

thread_local! {
    /// The message of a panic in this thread while an input is tried.
    static WATCHED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics of inputs are reported with the input, not where they happen.
fn listen_for_panics() {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let ours = WATCHED.with_borrow_mut(|watched| watched.as_mut().map(|said| *said = info.to_string()));
            if ours.is_none() {
                others(info);
            }
        }));
    });
}

/// Of this thread alone, so that a busy machine fails nothing.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does harm of a chosen kind when the input has the byte for it.
    struct Fragile;

    impl Target for Fragile {
        fn name(&self) -> &'static str {
            "fragile"
        }

        fn seeds(&self, _: &mut Rng) -> Vec<Vec<u8>> {
            vec![b"good".to_vec()]
        }

        fn generate(&self, rng: &mut Rng) -> Vec<u8> {
            rng.bytes(20)
        }

        fn run(&mut self, input: &[u8], trace: &mut Trace) {
            match input.first() {
                Some(1) => _ = input[input.len()],
                Some(2) => drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 30))),
                Some(3) => while cpu_time() < Duration::from_secs(3600) && !std::hint::black_box(over()) {},
                Some(b'g') => trace.accepted(),
                _ => trace.say("refused"),
            }
        }
    }

    fn over() -> bool {
        use std::cell::Cell;
        thread_local! { static BEGAN: Cell<Option<Duration>> = const { Cell::new(None) } }
        let began = BEGAN.get().unwrap_or_else(cpu_time);
        BEGAN.set(Some(began));
        cpu_time() - began > LONGEST_TIME + Duration::from_millis(50)
    }

    #[test]
    fn every_kind_of_harm_is_seen() {
        let why = |input: &[u8]| attempt(&mut Fragile, input).expect_err("harm");
        assert!(why(&[1, 5]).contains("out of bounds"));
        assert!(why(&[2]).starts_with("took 1073741824 bytes"));
        assert!(why(&[3]).contains("processor time"));
        assert!(attempt(&mut Fragile, b"good").is_ok_and(|(trace, _)| trace.accepted));
    }

    #[test]
    fn a_failure_is_found_minimised_and_told() {
        let plan = Plan { seed: 7, inputs: 100_000, time: Duration::from_secs(60) };
        let failure = loop {
            let failure = run(&mut Fragile, plan).expect_err("harm is found");
            if failure.why.starts_with("panicked") || failure.input.len() == 1 {
                break failure;
            }
        };
        assert_eq!(failure.input.len(), 1);
        let text = failure.to_string();
        assert!(text.contains("cargo xtask fuzz --target fragile --input 0"), "{text}");
    }

    #[test]
    fn what_comes_from_the_input_is_nothing_new() {
        let hash = |text| {
            let mut trace = Trace::default();
            trace.say(text);
            trace.hash
        };
        assert_eq!(hash("'a' is not an id of 16"), hash("'b' is not an id of 17"));
        assert_ne!(hash("too long"), hash("too short"));
    }
}
