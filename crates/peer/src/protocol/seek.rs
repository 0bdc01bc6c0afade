//! What to do with a sample after a peer has answered, or has not.

use std::time::Duration;

use crate::transport::Answer;

/// First pause before a peer is asked again; doubled each time.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The bytes are here.
    Take,
    /// Ask the same peer again, after this long.
    AskAgain(Duration),
    /// From the next best place.
    Elsewhere,
}

/// How long a consumer waits for a sample that may still come, or whose peer is busy. As long as the
/// consumer has something to do, waiting costs nothing, and a node whose ring reaches far ahead of the
/// others' has to wait for what they have not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Default for Patience {
    fn default() -> Self {
        // Nodes that train together begin a step together: what one of them lacks is on its way.
        Self(Duration::from_secs(2))
    }
}

impl Patience {
    /// After an answer to the `asked`th request for it. `starved`: how long the consumer has been
    /// waiting for the batch since the first answer; zero while it has something to do.
    pub fn after(self, answer: Answer, asked: u32, starved: Duration) -> Next {
        match answer {
            Answer::Here { .. } => Next::Take,
            Answer::NotHere => Next::Elsewhere,
            Answer::NotYet | Answer::Busy if starved >= self.0 => Next::Elsewhere,
            Answer::NotYet | Answer::Busy => {
                let pause = FIRST * 2u32.saturating_pow(asked.saturating_sub(1)).min(64);
                Next::AskAgain(pause.min(LONGEST))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_is_asked_for_again_but_not_for_ever() {
        let patience = Patience(Duration::from_millis(100));
        let after = |answer, asked, ms| patience.after(answer, asked, Duration::from_millis(ms));
        assert_eq!(after(Answer::Here { digest: 1, version: 1 }, 1, 500), Next::Take);
        assert_eq!(after(Answer::NotHere, 1, 0), Next::Elsewhere);
        assert_eq!(after(Answer::NotYet, 1, 0), Next::AskAgain(FIRST));
        assert_eq!(after(Answer::Busy, 40, 99), Next::AskAgain(LONGEST));
        assert_eq!(after(Answer::NotYet, 9, 100), Next::Elsewhere);
    }
}
