//! The ticks of a schedule.
//!
//! Where clocks are set forward, a cron expression that names its times of day (`30 2 * * *`) runs what falls into the
//! gap once, right after it; where they are set back, it runs once, the first time. One with `*` or a step among its times
//! (`*/15 * * * *`) follows real time: nothing falls into the gap, and both passes through the repeated hour count. This is
//! what cron has always done. Zones come from a database inside the program, so that every server has the same.

use crate::{
    schedule::Timing,
    spec::Invalid,
    time::{Millis, Time},
};
use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    Timestamp, Zoned,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase},
};
use std::sync::LazyLock;

/// Ticks that are closer would only fill the database.
const SHORTEST: Millis = Millis::seconds(1);
const LONGEST: Millis = Millis::seconds(366 * 24 * 3600);
const LONGEST_EXPRESSION: usize = 256;
const DAY_MS: i64 = 24 * 3600 * 1000;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A timing, ready to be asked.
#[derive(Clone, Debug)]
pub struct Ticks(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Every { from: Time, step: i64 },
    Cron { cron: Box<Cron>, zone: TimeZone, fixed: bool },
}

impl Timing {
    /// The timing as it is kept: the zone has its proper name.
    pub fn checked(self) -> Result<Self, Invalid> {
        Ok(match self {
            Timing::Cron { expression, time_zone } => {
                parse(&expression)?;
                let zone = zone(&time_zone)?;
                let time_zone = zone.iana_name().unwrap_or("UTC").to_owned();
                Timing::Cron { expression: expression.trim().to_owned(), time_zone }
            }
            Timing::Every(length) if length < SHORTEST || length > LONGEST => {
                let problem = format!("is {}; it must be between 1000 (a second) and {}", length.0, LONGEST.0);
                return Err(Invalid::new("every_ms", problem));
            }
            every @ Timing::Every(_) => every,
        })
    }

    /// The ticks of a schedule that was made at this time.
    pub fn ticks(&self, created_at: Time) -> Result<Ticks, Invalid> {
        Ok(Ticks(match self {
            Timing::Every(length) => {
                let step = i64::try_from(length.0).ok().filter(|step| *step > 0);
                let step = step.ok_or_else(|| Invalid::new("every_ms", "must be at least 1000 (a second)"))?;
                Kind::Every { from: created_at, step }
            }
            Timing::Cron { expression, time_zone } => {
                let (cron, fixed) = parse(expression)?;
                Kind::Cron { cron: Box::new(cron), zone: zone(time_zone)?, fixed }
            }
        }))
    }

    /// The first tick after this time, if there is ever one.
    pub fn next_after(&self, created_at: Time, after: Time) -> Option<Time> {
        self.ticks(created_at).ok()?.next_after(after)
    }

    /// A tick as it stands in the name of its job: in the schedule's zone, to the second if that tells ticks apart.
    pub fn label(&self, tick: Time, seconds: bool) -> String {
        let (name, fine) = match self {
            Timing::Every(length) => ("UTC", length.0 % 60_000 != 0),
            Timing::Cron { expression, time_zone } => (time_zone.as_str(), expression.split_whitespace().count() > 5),
        };
        let format = if fine || seconds { "%Y-%m-%d_%H:%M:%S" } else { "%Y-%m-%d_%H:%M" };
        in_zone(tick, name).map_or_else(|| tick.0.to_string(), |zoned| zoned.strftime(format).to_string())
    }
}

impl Ticks {
    pub fn next_after(&self, after: Time) -> Option<Time> {
        match &self.0 {
            Kind::Every { from, step } => {
                let steps = after.0.checked_sub(from.0)?.max(0) / step + 1;
                steps.checked_mul(*step).and_then(|length| from.0.checked_add(length)).map(Time)
            }
            Kind::Cron { cron, zone, fixed: true } => next_named(cron, zone, after),
            Kind::Cron { cron, zone, fixed: false } => {
                let start = zoned(after, zone)?;
                cron.find_next_occurrence(&start, false).ok().map(|found| time(found.timestamp()))
            }
        }
    }

    /// The last tick that is not after this time.
    pub fn last_until(&self, until: Time) -> Option<Time> {
        match &self.0 {
            Kind::Every { from, step } => {
                let steps = until.0.checked_sub(from.0)? / step;
                (steps > 0).then(|| Time(from.0 + steps * step))
            }
            Kind::Cron { cron, zone, fixed: true } => last_named(cron, zone, until),
            Kind::Cron { cron, zone, fixed: false } => {
                let start = zoned(until, zone)?;
                cron.find_previous_occurrence(&start, true).ok().map(|found| time(found.timestamp()))
            }
        }
    }

    /// The ticks at or after `from` and before `to`, the first `limit` of them.
    pub fn between(&self, from: Time, to: Time, limit: usize) -> Vec<Time> {
        let first = self.next_after(Time(from.0.saturating_sub(1)));
        let ticks = std::iter::successors(first, |tick| self.next_after(*tick));
        ticks.take_while(|tick| *tick < to).take(limit).collect()
    }

    /// The last `count` ticks that are not after this time, in order.
    pub fn latest(&self, until: Time, count: usize) -> Vec<Time> {
        let last = self.last_until(until);
        let before = |tick: &Time| self.last_until(Time(tick.0.saturating_sub(1)));
        let mut ticks: Vec<Time> = std::iter::successors(last, before).take(count).collect();
        ticks.reverse();
        ticks
    }
}

/// What clocks in a zone show, and the zone's name for it.
pub fn in_zone(at: Time, name: &str) -> Option<Zoned> {
    zoned(at, &zone(name).ok()?)
}

/// The expression, and whether it names its times of day.
fn parse(expression: &str) -> Result<(Cron, bool), Invalid> {
    let wrong = |why: String| {
        let help = "write five fields (minute hour day month weekday), six with seconds in front, or one of @hourly, \
                    @daily, @weekly, @monthly, @yearly";
        Invalid::new("cron", format!("{why}; {help}"))
    };
    let text = expression.trim();
    if text.is_empty() || text.len() > LONGEST_EXPRESSION {
        return Err(wrong(format!("must be between 1 and {LONGEST_EXPRESSION} bytes")));
    }
    let text = if text.eq_ignore_ascii_case("@midnight") { "@daily" } else { text };
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let cron =
        parser.parse(text).map_err(|error| wrong(format!("'{expression}' is not a cron expression: {error}")))?;
    let fields: Vec<&str> = cron.pattern.as_str().split_whitespace().collect();
    let times = if fields.len() > 5 { 3 } else { 2 };
    let fixed = fields.iter().take(times).all(|field| !field.contains(['*', '/']));
    Ok((cron, fixed))
}

fn zone(name: &str) -> Result<TimeZone, Invalid> {
    let name = if name.is_empty() { "UTC" } else { name };
    ZONES.get(name).map_err(|_| {
        let problem = format!("'{name}' is not a time zone; use an IANA name such as Europe/Madrid, or UTC");
        Invalid::new("time_zone", problem)
    })
}

/// To the second: cron knows nothing finer.
fn zoned(at: Time, zone: &TimeZone) -> Option<Zoned> {
    Timestamp::from_second(at.0.div_euclid(1000)).ok().map(|at| at.to_zoned(zone.clone()))
}

fn time(at: Timestamp) -> Time {
    Time(at.as_millisecond())
}

/// Named times are looked for on a clock that is never set, and then found in the zone. That keeps their order.
fn next_named(cron: &Cron, zone: &TimeZone, after: Time) -> Option<Time> {
    let mut civil = unset(zoned(after, zone)?.datetime())?;
    loop {
        civil = cron.find_next_occurrence(&civil, false).ok()?;
        let tick = named(zone, civil.datetime())?;
        if tick > after {
            return Some(tick);
        }
    }
}

fn last_named(cron: &Cron, zone: &TimeZone, until: Time) -> Option<Time> {
    // In the second pass through a repeated hour, later times of day are over already.
    let at = Timestamp::from_millisecond(until.0).ok()?;
    let day_before = Timestamp::from_millisecond(until.0.checked_sub(DAY_MS)?).ok()?;
    let furthest: Offset = zone.to_offset(at).max(zone.to_offset(day_before));
    let mut civil = unset(furthest.to_datetime(at))?;
    let mut inclusive = true;
    loop {
        civil = cron.find_previous_occurrence(&civil, inclusive).ok()?;
        inclusive = false;
        let tick = named(zone, civil.datetime())?;
        if tick <= until {
            return Some(tick);
        }
    }
}

fn unset(civil: DateTime) -> Option<Zoned> {
    civil.to_zoned(TimeZone::UTC).ok()
}

/// When a zone's clocks show this for the first time; if they never do, when they show something later.
fn named(zone: &TimeZone, civil: DateTime) -> Option<Time> {
    let ambiguous = zone.to_ambiguous_timestamp(civil);
    let AmbiguousOffset::Gap { before, .. } = ambiguous.offset() else {
        return ambiguous.earlier().ok().map(time);
    };
    let inside = before.to_timestamp(civil).ok()?;
    let just_after = inside.checked_add(jiff::SignedDuration::from_nanos(1)).ok()?;
    zone.preceding(just_after).next().map(|transition| time(transition.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(expression: &str, zone: &str) -> Timing {
        Timing::Cron { expression: expression.into(), time_zone: zone.into() }
    }

    fn at(text: &str) -> Time {
        time(text.parse().expect("a timestamp"))
    }

    /// The ticks between two times, as the zone's clocks show them.
    fn between(timing: &Timing, from: &str, to: &str) -> Vec<String> {
        let Timing::Cron { time_zone, .. } = timing else { panic!("for cron only") };
        let ticks = timing.ticks(Time(0)).expect("valid").between(at(from), at(to), 1000);
        backwards_is_the_same(timing, at(from), at(to), &ticks);
        let show = |tick: &Time| in_zone(*tick, time_zone).expect("in range").strftime("%d %H:%M:%S%:z").to_string();
        ticks.iter().map(show).map(|text| text.replacen(":00+", "+", 1).replacen(":00-", "-", 1)).collect()
    }

    fn backwards_is_the_same(timing: &Timing, from: Time, to: Time, ticks: &[Time]) {
        let latest = timing.ticks(Time(0)).expect("valid").latest(Time(to.0 - 1), ticks.len() + 1);
        let inside: Vec<Time> = latest.into_iter().filter(|tick| *tick >= from).collect();
        assert_eq!(inside, ticks, "{timing:?}");
    }

    #[test]
    fn named_times_in_a_gap_run_once_right_after_it() {
        let madrid = |expression: &str| cron(expression, "Europe/Madrid");
        let day = ["2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"];
        let spring = |expression: &str| between(&madrid(expression), day[0], day[1]);
        assert_eq!(spring("30 2 * * *"), ["29 03:00+02:00", "30 02:30+02:00"]);
        assert_eq!(spring("0 3 * * *"), ["29 03:00+02:00", "30 03:00+02:00"]);
        // Two in the gap are one run, and so is one in the gap and one at its end.
        assert_eq!(spring("0,30 2 * * *"), ["29 03:00+02:00", "30 02:00+02:00", "30 02:30+02:00"]);
        assert_eq!(spring("30 2-3 * * *"), ["29 03:00+02:00", "29 03:30+02:00", "30 02:30+02:00", "30 03:30+02:00"]);
        assert_eq!(spring("0 2,3 * * *"), ["29 03:00+02:00", "30 02:00+02:00", "30 03:00+02:00"]);
        assert_eq!(spring("15 30 2 * * *"), ["29 03:00+02:00", "30 02:30:15+02:00"]);
        let york = cron("30 2 * * *", "America/New_York");
        assert_eq!(
            between(&york, "2026-03-07T12:00:00Z", "2026-03-09T12:00:00Z"),
            ["08 03:00-04:00", "09 02:30-04:00"]
        );
        // Half an hour is missing there.
        let howe = cron("15 2 * * *", "Australia/Lord_Howe");
        assert_eq!(
            between(&howe, "2026-10-03T02:00:00Z", "2026-10-05T02:00:00Z"),
            ["04 02:30+11:00", "05 02:15+11:00"]
        );
    }

    #[test]
    fn named_times_in_a_repeated_hour_run_once_the_first_time() {
        let madrid = |expression: &str| cron(expression, "Europe/Madrid");
        let autumn = |expression: &str| between(&madrid(expression), "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
        assert_eq!(autumn("30 2 * * *"), ["25 02:30+02:00", "26 02:30+01:00"]);
        assert_eq!(autumn("0 2,14 * * *"), ["24 14:00+02:00", "25 02:00+02:00", "25 14:00+01:00", "26 02:00+01:00"]);
        let york = cron("30 1 * * *", "America/New_York");
        assert_eq!(
            between(&york, "2026-10-31T12:00:00Z", "2026-11-02T12:00:00Z"),
            ["01 01:30-04:00", "02 01:30-05:00"]
        );
        let howe = cron("45 1 * * *", "Australia/Lord_Howe");
        assert_eq!(
            between(&howe, "2026-04-04T02:00:00Z", "2026-04-06T02:00:00Z"),
            ["05 01:45+11:00", "06 01:45+10:30"]
        );
        // Asked in the middle of the second pass, the first one is over.
        let after = at("2026-10-25T01:10:00Z");
        assert_eq!(madrid("30 2 * * *").next_after(Time(0), after), Some(at("2026-10-26T01:30:00Z")));
        let ticks = madrid("30 2 * * *").ticks(Time(0)).expect("valid");
        assert_eq!(ticks.last_until(after), Some(at("2026-10-25T00:30:00Z")));
    }

    #[test]
    fn steps_and_wildcards_follow_real_time() {
        let quarter = |zone| cron("*/15 * * * *", zone);
        for (zone, from, to) in [
            ("Europe/Madrid", "2026-03-29T00:00:00Z", "2026-03-29T04:00:00Z"),
            ("Europe/Madrid", "2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z"),
            ("America/New_York", "2026-03-08T05:00:00Z", "2026-03-08T09:00:00Z"),
            ("America/New_York", "2026-11-01T04:00:00Z", "2026-11-01T08:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T13:00:00Z", "2026-04-04T17:00:00Z"),
            ("Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-01T04:00:00Z"),
        ] {
            let ticks = quarter(zone).ticks(Time(0)).expect("valid").between(at(from), at(to), 100);
            let expected: Vec<Time> = (0..16).map(|i| at(from) + Millis::seconds(900 * i)).collect();
            assert_eq!(ticks, expected, "{zone}");
            backwards_is_the_same(&quarter(zone), at(from), at(to), &ticks);
        }
        let hourly = between(&cron("@hourly", "Europe/Madrid"), "2026-10-25T00:00:00Z", "2026-10-25T02:00:01Z");
        assert_eq!(hourly, ["25 02:00+02:00", "25 02:00+01:00", "25 03:00+01:00"]);
    }

    #[test]
    fn zones_have_their_own_midnights() {
        let daily = |zone| cron("@daily", zone).next_after(Time(0), at("2026-06-01T12:00:00Z"));
        assert_eq!(daily("Asia/Kathmandu"), Some(at("2026-06-01T18:15:00Z")));
        assert_eq!(daily("America/Phoenix"), Some(at("2026-06-02T07:00:00Z")));
        assert_eq!(daily("Europe/Madrid"), Some(at("2026-06-01T22:00:00Z")));
        assert_eq!(daily(""), Some(at("2026-06-02T00:00:00Z")));
        // Where clocks are set at midnight there is a day that begins at one.
        let beirut = cron("@daily", "Asia/Beirut");
        assert_eq!(between(&beirut, "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z"), ["29 01:00+03:00"]);
    }

    #[test]
    fn names_stand_for_expressions() {
        let next = |expression: &str| cron(expression, "UTC").next_after(Time(0), at("2026-06-03T12:30:00Z"));
        assert_eq!(next("@hourly"), Some(at("2026-06-03T13:00:00Z")));
        assert_eq!(next("@daily"), Some(at("2026-06-04T00:00:00Z")));
        assert_eq!(next("@midnight"), next("@daily"));
        assert_eq!(next("@weekly"), Some(at("2026-06-07T00:00:00Z")));
        assert_eq!(next("@monthly"), Some(at("2026-07-01T00:00:00Z")));
        assert_eq!(next("@yearly"), Some(at("2027-01-01T00:00:00Z")));
        assert_eq!(next("@annually"), next("@yearly"));
        assert_eq!(next("*/10 * * * * *"), Some(at("2026-06-03T12:30:10Z")));
        assert_eq!(next("0 9 * * MON-FRI"), Some(at("2026-06-04T09:00:00Z")));
    }

    #[test]
    fn days_that_not_every_month_or_year_has() {
        let ticks = |expression: &str, from: &str, count| {
            let ticks = cron(expression, "UTC").ticks(Time(0)).expect("valid").between(at(from), Time(i64::MAX), count);
            let show = |tick: &Time| in_zone(*tick, "UTC").expect("in range").strftime("%F").to_string();
            ticks.iter().map(show).collect::<Vec<_>>()
        };
        assert_eq!(ticks("0 0 29 2 *", "2026-01-01T00:00:00Z", 2), ["2028-02-29", "2032-02-29"]);
        assert_eq!(ticks("0 0 29 2 *", "2097-01-01T00:00:00Z", 1), ["2104-02-29"]);
        assert_eq!(ticks("0 0 31 * *", "2026-03-01T00:00:00Z", 3), ["2026-03-31", "2026-05-31", "2026-07-31"]);
        assert_eq!(ticks("0 0 L * *", "2026-01-31T12:00:00Z", 1), ["2026-02-28"]);
    }

    #[test]
    fn what_never_comes_has_no_tick() {
        for expression in ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * 31 2 *"] {
            assert_eq!(cron(expression, "Europe/Madrid").next_after(Time(0), Time(1_800_000_000_000)), None);
        }
        assert_eq!(cron("* * * * *", "UTC").next_after(Time(0), Time(i64::MAX)), None);
        assert_eq!(Timing::Every(Millis::seconds(1)).next_after(Time(0), Time(i64::MAX)), None);
    }

    #[test]
    fn intervals_count_from_the_making() {
        let every = Timing::Every(Millis::seconds(90));
        let next = |after| every.next_after(Time(1_000), Time(after));
        assert_eq!(next(0), Some(Time(91_000)));
        assert_eq!(next(1_000), Some(Time(91_000)));
        assert_eq!(next(90_999), Some(Time(91_000)));
        assert_eq!(next(91_000), Some(Time(181_000)));
        let ticks = every.ticks(Time(1_000)).expect("valid");
        assert_eq!(ticks.last_until(Time(90_999)), None);
        assert_eq!(ticks.last_until(Time(181_000)), Some(Time(181_000)));
        assert_eq!(ticks.latest(Time(300_000), 2), [Time(181_000), Time(271_000)]);
        assert_eq!(ticks.between(Time(91_000), Time(181_000), 9), [Time(91_000)]);
    }

    #[test]
    fn each_mistake_is_named_with_what_would_be_right() {
        let refused = |timing: Timing| timing.checked().expect_err("must be refused");
        for expression in ["", "* * * *", "* * * * * * *", "61 * * * *", "a b c d e", "@never", "* * * * * 2026 *"] {
            let Invalid { field, problem } = refused(cron(expression, "UTC"));
            assert!(field == "cron" && problem.contains("five fields"), "{expression}: {problem}");
        }
        assert_eq!(refused(cron(&"1,".repeat(1000), "UTC")).field, "cron");
        for zone in ["Mars/Olympus", "+05:00", "CEST", "../etc/passwd"] {
            let Invalid { field, problem } = refused(cron("@daily", zone));
            assert!(field == "time_zone" && problem.contains("Europe/Madrid"), "{zone}: {problem}");
        }
        for length in [0, 999, u64::MAX] {
            assert_eq!(refused(Timing::Every(Millis(length))).field, "every_ms");
        }
        let proper = cron(" 0 3 * * * ", "europe/madrid").checked().expect("valid");
        assert_eq!(proper, cron("0 3 * * *", "Europe/Madrid"));
    }

    #[test]
    fn labels_are_in_the_zone_of_the_schedule() {
        let tick = at("2025-12-28T02:00:00Z");
        assert_eq!(cron("0 3 * * *", "Europe/Madrid").label(tick, false), "2025-12-28_03:00");
        assert_eq!(cron("0 0 3 * * *", "Europe/Madrid").label(tick, false), "2025-12-28_03:00:00");
        assert_eq!(Timing::Every(Millis::seconds(60)).label(tick, false), "2025-12-28_02:00");
        assert_eq!(Timing::Every(Millis::seconds(1)).label(tick, false), "2025-12-28_02:00:00");
        assert_eq!(cron("0 3 * * *", "UTC").label(tick, true), "2025-12-28_02:00:00");
    }
}
