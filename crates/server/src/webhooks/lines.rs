//! Deliveries that are due, in one line for each receiver, so that a slow one holds up nobody else.

use hodei_core::{
    id::{DeliveryId, IdMap},
    webhook::Delivery,
};
use std::collections::{HashMap, VecDeque};

/// Messages on their way at one time, in all and to one receiver.
const FLYING: usize = 64;
const FLYING_TO_ONE: usize = 8;
/// Deliveries that are held in memory, waiting ones included: shared by all receivers, and with one for each that has none.
const HELD: usize = 8192;
const MOST_HELD: usize = 2 * HELD;

#[derive(Debug)]
pub struct Lines<W> {
    lines: HashMap<String, Line>,
    /// The receivers that somebody waits for and that may be sent to, in turn.
    turns: VecDeque<String>,
    held: IdMap<DeliveryId, Held<W>>,
    flying: usize,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Delivery>,
    flying: usize,
    has_turn: bool,
}

#[derive(Debug)]
struct Held<W> {
    receiver: String,
    /// What is to be done once it has landed; None while it waits.
    wishes: Option<Vec<W>>,
}

impl<W> Default for Lines<W> {
    fn default() -> Self {
        Self { lines: HashMap::new(), turns: VecDeque::new(), held: IdMap::default(), flying: 0 }
    }
}

impl<W> Lines<W> {
    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn holds(&self, id: DeliveryId) -> bool {
        self.held.contains_key(&id)
    }

    /// Whether its receiver's line may get longer.
    pub fn has_room_for(&self, delivery: &Delivery) -> bool {
        // A quarter of what is left: however many receivers are slow, there is room for one more.
        let room = (HELD.saturating_sub(self.held.len()) / 4).max(1);
        let waiting = self.lines.get(receiver(&delivery.to.url)).map_or(0, |line| line.waiting.len());
        waiting < room && self.held.len() < MOST_HELD
    }

    pub fn add(&mut self, delivery: Delivery) {
        let receiver = receiver(&delivery.to.url).to_owned();
        let line = self.lines.entry(receiver.clone()).or_default();
        self.held.insert(delivery.id, Held { receiver: receiver.clone(), wishes: None });
        line.waiting.push_back(delivery);
        self.give_turn(receiver);
    }

    /// The next one to send, if any may be sent now.
    pub fn next(&mut self) -> Option<Delivery> {
        if self.flying >= FLYING {
            return None;
        }
        let receiver = self.turns.pop_front()?;
        let line = self.lines.get_mut(&receiver)?;
        line.has_turn = false;
        let delivery = line.waiting.pop_front()?;
        line.flying += 1;
        self.flying += 1;
        if let Some(held) = self.held.get_mut(&delivery.id) {
            held.wishes = Some(Vec::new());
        }
        self.give_turn(receiver);
        Some(delivery)
    }

    /// It is not on its way any more: what was wished for in the meantime.
    pub fn landed(&mut self, id: DeliveryId) -> Vec<W> {
        let Some(held) = self.held.remove(&id) else { return Vec::new() };
        self.flying -= 1;
        if let Some(line) = self.lines.get_mut(&held.receiver) {
            line.flying -= 1;
            if line.flying == 0 && line.waiting.is_empty() {
                self.lines.remove(&held.receiver);
            }
        }
        self.give_turn(held.receiver);
        held.wishes.unwrap_or_default()
    }

    /// Keeps a wish for one that is on its way; gives it back for any other.
    pub fn wish(&mut self, id: DeliveryId, wish: W) -> Result<(), W> {
        match self.held.get_mut(&id).and_then(|held| held.wishes.as_mut()) {
            Some(wishes) => wishes.push(wish),
            None => return Err(wish),
        }
        Ok(())
    }

    fn give_turn(&mut self, receiver: String) {
        if let Some(line) = self.lines.get_mut(&receiver)
            && !line.has_turn
            && !line.waiting.is_empty()
            && line.flying < FLYING_TO_ONE
        {
            line.has_turn = true;
            self.turns.push_back(receiver);
        }
    }
}

/// The host and port of an address: whoever shares them is one receiver.
fn receiver(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodei_core::{
        id::{self, JobId},
        spec::Webhook,
        state::StateKind,
        time::Time,
    };

    fn delivery(number: u64, url: &str) -> Delivery {
        let to = Webhook { url: url.to_owned(), secret: None };
        Delivery::new(DeliveryId(id::made(1, 1, number)), JobId::NIL, StateKind::Succeeded, to, Time(1))
    }

    fn take(lines: &mut Lines<()>) -> Vec<Delivery> {
        std::iter::from_fn(|| lines.next()).collect()
    }

    #[test]
    fn one_receiver_gets_a_few_at_a_time_and_others_are_not_kept_waiting() {
        let mut lines = Lines::default();
        for number in 0..100 {
            lines.add(delivery(number, "https://slow.example/a"));
        }
        let slow = take(&mut lines);
        assert_eq!(slow.len(), FLYING_TO_ONE);
        lines.add(delivery(100, "https://other.example/"));
        assert_eq!(take(&mut lines).len(), 1);
        lines.landed(slow[0].id);
        assert_eq!(take(&mut lines).len(), 1);
        assert_eq!(lines.held(), 100);
    }

    #[test]
    fn no_more_are_on_their_way_than_may_be_and_all_get_their_turn() {
        let mut lines: Lines<()> = Lines::default();
        for number in 0..1000 {
            lines.add(delivery(number, &format!("https://host-{}.example/", number % 50)));
        }
        let mut sent = 0;
        let mut flying = take(&mut lines);
        while !flying.is_empty() {
            assert!(flying.len() <= FLYING);
            sent += flying.len();
            flying.drain(..).for_each(|delivery| _ = lines.landed(delivery.id));
            flying = take(&mut lines);
        }
        assert_eq!((sent, lines.held(), lines.lines.len()), (1000, 0, 0));
    }

    #[test]
    fn however_many_are_slow_there_is_room_for_another() {
        let mut lines: Lines<()> = Lines::default();
        let mut fill = |host: u64| {
            let url = format!("https://host-{host}.example/");
            let new = (0..HELD as u64).map(|number| delivery(host * 100_000 + number, &url));
            let mut taken = 0;
            for delivery in new {
                if !lines.has_room_for(&delivery) {
                    break;
                }
                lines.add(delivery);
                taken += 1;
            }
            taken
        };
        assert!(fill(0) > 1000);
        assert!((1..200).all(|host| fill(host) > 0));
        // But not without end.
        assert!((200..2 * MOST_HELD as u64).any(|host| fill(host) == 0));
        assert_eq!((lines.held(), lines.lines.values().filter(|line| line.waiting.is_empty()).count()), (MOST_HELD, 0));
    }

    #[test]
    fn wishes_are_kept_for_what_is_on_its_way() {
        let mut lines = Lines::default();
        lines.add(delivery(1, "https://a.example/"));
        let id = delivery(1, "").id;
        assert_eq!(lines.wish(id, "waits"), Err("waits"));
        lines.next().expect("one");
        assert_eq!(lines.wish(id, "again"), Ok(()));
        assert_eq!(lines.landed(id), ["again"]);
        assert_eq!(lines.wish(id, "gone"), Err("gone"));
    }

    #[test]
    fn receivers_are_told_apart_by_host_and_port() {
        assert_eq!(receiver("https://user:p@ss@example.com:8443/a?b@c"), "example.com:8443");
        assert_eq!(receiver("http://[::1]:80?x"), "[::1]:80");
        assert_eq!(receiver("http://example.com"), "example.com");
    }
}
