//! What follows a try.

use super::{
    MOST_TRIES,
    post::{Answer, PostError},
};
use hodei_core::{
    time::{Millis, Time},
    webhook::{Delivery, DeliveryState, DeliveryTry},
};

const GONE: u16 = 410;
/// Whoever answers so may say when to come back.
const BUSY: [u16; 2] = [429, 503];
/// The least and the most that a receiver can put us off.
const SOONEST: Millis = Millis::seconds(1);
const LATEST: Millis = Millis::seconds(24 * 3600);

/// Notes a try that began at `began` and took so long, and says what is next. `chance` is any number.
pub fn settle(
    delivery: &mut Delivery,
    outcome: &Result<Answer, PostError>,
    (began, took): (Time, Millis),
    retry: &[Millis],
    chance: u64,
) {
    if delivery.tries.len() >= MOST_TRIES {
        delivery.tries.drain(..=delivery.tries.len() - MOST_TRIES);
    }
    delivery.tries.push(DeliveryTry {
        at: began,
        status: outcome.as_ref().ok().map(|answer| answer.status),
        error: complaint(outcome),
        took,
    });
    let at = began + took;
    delivery.state = match (outcome, retry.get(delivery.tries.len() - 1)) {
        (Ok(answer), _) if (200..300).contains(&answer.status) => DeliveryState::Delivered { at },
        (Ok(Answer { status: GONE, .. }), _) | (_, None) => DeliveryState::Failed { at },
        (Err(error), _) if error.is_final() => DeliveryState::Failed { at },
        (Ok(Answer { status, retry_after: Some(wait) }), Some(_)) if BUSY.contains(status) => {
            DeliveryState::Pending { next: at + (*wait).clamp(SOONEST, LATEST) }
        }
        (_, Some(wait)) => DeliveryState::Pending { next: at + jittered(*wait, chance) },
    };
}

fn complaint(outcome: &Result<Answer, PostError>) -> String {
    match outcome {
        Ok(answer) if (200..300).contains(&answer.status) => String::new(),
        Ok(answer) => format!("the receiver answered {}", answer.status),
        Err(error) => error.to_string(),
    }
}

/// Up to a tenth more or less, so that what failed together does not come back together.
fn jittered(wait: Millis, chance: u64) -> Millis {
    let tenth = wait.0 / 10;
    Millis(wait.0 - tenth + chance % (2 * tenth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodei_core::{
        id::{DeliveryId, JobId},
        spec::Webhook,
        state::StateKind,
    };

    const RETRY: [Millis; 2] = [Millis::seconds(10), Millis::seconds(100)];

    fn new() -> Delivery {
        let to = Webhook { url: "https://example.com/".into(), secret: None };
        Delivery::new(DeliveryId::NIL, JobId::NIL, StateKind::Failed, to, Time(0))
    }

    fn answered(status: u16, retry_after: Option<u64>) -> Result<Answer, PostError> {
        Ok(Answer { status, retry_after: retry_after.map(Millis::seconds) })
    }

    fn after(delivery: &mut Delivery, outcome: &Result<Answer, PostError>) -> DeliveryState {
        settle(delivery, outcome, (Time(1000), Millis(500)), &RETRY, 1000);
        delivery.state
    }

    #[test]
    fn a_delivery_is_tried_until_it_is_accepted_or_the_plan_ends() {
        let mut delivery = new();
        let pending = |next| DeliveryState::Pending { next: Time(next) };
        assert_eq!(after(&mut delivery, &answered(500, None)), pending(1500 + 10_000));
        assert_eq!(after(&mut delivery, &Err(PostError::TooLong)), pending(1500 + 91_000));
        assert_eq!(after(&mut delivery, &answered(302, None)), DeliveryState::Failed { at: Time(1500) });
        let said: Vec<_> = delivery.tries.iter().map(|one| (one.status, one.error.as_str())).collect();
        let expected = [
            (Some(500), "the receiver answered 500"),
            (None, "no answer in time"),
            (Some(302), "the receiver answered 302"),
        ];
        assert_eq!(said, expected);
        assert_eq!(after(&mut new(), &answered(204, None)), DeliveryState::Delivered { at: Time(1500) });
        assert_eq!(after(&mut new(), &answered(410, None)), DeliveryState::Failed { at: Time(1500) });
    }

    #[test]
    fn a_busy_receiver_says_when_within_reason() {
        let pending = |seconds: i64| DeliveryState::Pending { next: Time(1500 + seconds * 1000) };
        assert_eq!(after(&mut new(), &answered(429, Some(7))), pending(7));
        assert_eq!(after(&mut new(), &answered(503, Some(0))), pending(1));
        assert_eq!(after(&mut new(), &answered(503, Some(1_000_000))), pending(24 * 3600));
        assert_eq!(after(&mut new(), &answered(500, Some(7))), pending(10));
        assert_eq!(after(&mut new(), &answered(429, None)), pending(10));
    }

    #[test]
    fn only_the_last_tries_are_kept() {
        let mut delivery = new();
        for status in 0..30 {
            settle(&mut delivery, &answered(500 + status, None), (Time(0), Millis(1)), &RETRY, 0);
        }
        assert_eq!(delivery.tries.len(), MOST_TRIES);
        assert_eq!(delivery.tries.last().and_then(|one| one.status), Some(529));
    }

    #[test]
    fn waits_differ_by_a_tenth_at_most() {
        for chance in [0, 1, 999, u64::MAX] {
            assert!((900..=1100).contains(&jittered(Millis(1000), chance).0));
        }
        assert_eq!(jittered(Millis(5), 3), Millis(5));
    }
}
