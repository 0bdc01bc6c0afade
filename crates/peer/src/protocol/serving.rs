//! What a holder says of a sample that it is asked for.

use crate::NodeId;
use crate::protocol::ledger::Ledger;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// The bytes.
    Here,
    NotYet,
    NotHere,
}

/// What to say of a sample that `epoch` uses. What is not held may come as long as a node that is
/// there is not done with the epoch before; this node itself is one of them.
pub fn say(held: bool, epoch: u32, ledger: &Ledger, is_up: impl Fn(NodeId) -> bool) -> Say {
    if held {
        Say::Here
    } else if ledger.may_come(epoch, is_up) {
        Say::NotYet
    } else {
        Say::NotHere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_held_may_come_while_somebody_who_lives_is_behind() {
        let mut ledger = Ledger::new(2);
        assert_eq!(say(true, 1, &ledger, |_| true), Say::Here);
        assert_eq!(say(false, 1, &ledger, |_| true), Say::NotYet);
        ledger.done(0, 0);
        assert_eq!(say(false, 1, &ledger, |node| node == 0), Say::NotHere);
        ledger.done(1, 0);
        assert_eq!(say(false, 1, &ledger, |_| true), Say::NotHere);
    }
}
