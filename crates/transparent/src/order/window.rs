//! Room for files that no level keeps: they come before they are read, and go when they were.
//!
//! A file counts from the moment it is to be fetched until nobody has it open any more; so what lies
//! in the window never exceeds its room. Files that were read stay until their room is needed: who opens one
//! twice in a row finds it the second time too.

use std::collections::{BTreeMap, HashMap};

use super::names::Name;

/// The window's part of a level, at most: enough to be seconds ahead of a fast reader.
const MOST: u64 = 1 << 30;
/// So many of the oldest files are looked at when room is needed: files come in the order in which they
/// are read, as far as that goes.
const LOOKED_AT: usize = 4096;

/// How much of a level with this quota is a window.
pub fn window_room(quota: u64) -> u64 {
    (quota / 8).min(MOST)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Coming,
    Here,
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    bytes: u64,
    state: State,
    /// Its place in [`Window::here`], once it is there.
    came: u64,
}

/// The answer to who asks for room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It may come.
    Granted,
    /// Not yet: these are let go for it. It has to be asked for again when they are gone, or the program
    /// has read on.
    Later(Vec<Name>),
    /// It does not fit, even if nothing else were here.
    TooLarge,
}

#[derive(Debug)]
pub struct Window {
    room: u64,
    /// Bytes of all guests: in it, on their way to it, or out of it.
    used: u64,
    guests: HashMap<Name, Guest>,
    /// Those that are here, oldest first.
    here: BTreeMap<u64, Name>,
    next: u64,
}

impl Window {
    pub fn new(room: u64) -> Self {
        Self { room, used: 0, guests: HashMap::new(), here: BTreeMap::new(), next: 0 }
    }

    pub fn fits(&self, bytes: u64) -> bool {
        bytes <= self.room
    }

    /// Room for a file that is not in the window. `is_done` tells of files that they were read, or will not be.
    pub fn claim(&mut self, name: Name, bytes: u64, is_done: impl Fn(Name) -> bool) -> Claim {
        if !self.fits(bytes) {
            return Claim::TooLarge;
        }
        if self.used + bytes <= self.room {
            self.add(name, bytes);
            return Claim::Granted;
        }
        // Those that are leaving still count: somebody may have them open for hours.
        let mut missing = self.used + bytes - self.room;
        let mut victims = vec![];
        for &guest in self.here.values().take(LOOKED_AT).filter(|&&guest| is_done(guest)) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.guests[&guest].bytes);
            victims.push(guest);
        }
        for &victim in &victims {
            self.let_go(victim);
        }
        Claim::Later(victims)
    }

    fn add(&mut self, name: Name, bytes: u64) {
        let guest = Guest { bytes, state: State::Coming, came: 0 };
        let before = self.guests.insert(name, guest);
        debug_assert!(before.is_none(), "{name:?} is in the window already");
        self.used += bytes;
    }

    /// It has come.
    pub fn arrived(&mut self, name: Name) {
        if let Some(guest) = self.guests.get_mut(&name)
            && guest.state == State::Coming
        {
            guest.state = State::Here;
            guest.came = self.next;
            self.here.insert(self.next, name);
            self.next += 1;
        }
    }

    /// It is not to be used any more.
    fn let_go(&mut self, name: Name) {
        if let Some(guest) = self.guests.get_mut(&name) {
            guest.state = State::Leaving;
            self.here.remove(&guest.came);
        }
    }

    /// Nobody has it any more, or it did not come: its bytes, if it was a guest.
    pub fn gone(&mut self, name: Name) -> Option<u64> {
        let guest = self.guests.remove(&name)?;
        if guest.state == State::Here {
            self.here.remove(&guest.came);
        }
        self.used -= guest.bytes;
        Some(guest.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_an_eighth_or_as_large_as_a_file() {
        assert_eq!(window_room(800), 100);
        assert_eq!(window_room(100 << 30), 1 << 30);
        assert_eq!(window_room(0), 0);
    }

    #[test]
    fn what_was_read_goes_first_when_room_is_needed() {
        let mut window = Window::new(10);
        for name in [1, 2, 3].map(Name) {
            assert_eq!(window.claim(name, 3, |_| false), Claim::Granted);
            window.arrived(name);
        }
        assert_eq!(window.claim(Name(4), 11, |_| true), Claim::TooLarge);
        assert_eq!(window.claim(Name(4), 3, |_| false), Claim::Later(vec![]));
        let done = |name| name != Name(1);
        assert_eq!(window.claim(Name(4), 4, done), Claim::Later(vec![Name(2)]));
        assert_eq!(window.gone(Name(2)), Some(3));
        assert_eq!(window.claim(Name(4), 4, done), Claim::Granted);
        assert_eq!(window.used, 10);
    }

    #[test]
    fn a_file_that_somebody_keeps_open_holds_nobody_up() {
        let mut window = Window::new(10);
        for name in [1, 2, 3].map(Name) {
            assert_eq!(window.claim(name, 3, |_| true), Claim::Granted);
            window.arrived(name);
        }
        assert_eq!(window.claim(Name(4), 3, |_| true), Claim::Later(vec![Name(1)]));
        // Nobody knows when it is closed.
        assert_eq!(window.claim(Name(4), 3, |_| true), Claim::Later(vec![Name(2)]));
        assert_eq!(window.gone(Name(2)), Some(3));
        assert_eq!(window.claim(Name(4), 3, |_| true), Claim::Granted);
    }

    /// The same as lists that are counted anew each time.
    #[derive(Default)]
    struct Naive(BTreeMap<Name, (u64, State, usize)>);

    impl Naive {
        fn sum(&self) -> u64 {
            self.0.values().map(|guest| guest.0).sum()
        }

        fn claim(&mut self, name: Name, bytes: u64, done: u32, room: u64) -> Claim {
            if bytes > room {
                return Claim::TooLarge;
            }
            if self.sum() + bytes <= room {
                self.0.insert(name, (bytes, State::Coming, 0));
                return Claim::Granted;
            }
            let mut oldest: Vec<(usize, Name)> = self
                .0
                .iter()
                .filter(|(_, guest)| guest.1 == State::Here)
                .map(|(&name, guest)| (guest.2, name))
                .collect();
            oldest.retain(|(_, name)| name.0 < done);
            oldest.sort_unstable();
            let mut victims = vec![];
            for (_, victim) in oldest {
                let freed: u64 = victims.iter().map(|name| self.0[name].0).sum();
                if self.sum() - freed + bytes > room {
                    victims.push(victim);
                }
            }
            for victim in &victims {
                self.0.get_mut(victim).unwrap().1 = State::Leaving;
            }
            Claim::Later(victims)
        }
    }

    proptest! {
        #[test]
        fn room_is_never_exceeded_and_a_naive_one_agrees(
            room in 0u64..60,
            steps in prop::collection::vec((0u8..4, 0u32..12, 0u64..30), 0..120),
        ) {
            let mut window = Window::new(room);
            let mut naive = Naive::default();
            for (time, (what, name, number)) in steps.into_iter().enumerate() {
                let name = Name(name);
                match what {
                    0 | 1 if naive.0.contains_key(&name) => {}
                    0 | 1 => {
                        let done = number as u32;
                        let claim = window.claim(name, number, |guest| guest.0 < done);
                        prop_assert_eq!(claim, naive.claim(name, number, done, room));
                    }
                    2 => {
                        window.arrived(name);
                        if let Some(guest) = naive.0.get_mut(&name).filter(|guest| guest.1 == State::Coming) {
                            (guest.1, guest.2) = (State::Here, time);
                        }
                    }
                    _ => prop_assert_eq!(window.gone(name), naive.0.remove(&name).map(|guest| guest.0)),
                }
                prop_assert!(window.used <= room);
                prop_assert_eq!(window.used, naive.sum());
            }
        }
    }
}
