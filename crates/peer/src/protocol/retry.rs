//! What to do with a sample after a peer's answer.

use std::time::Duration;

use crate::message::Answer;

/// The first pause before a peer is asked again; it doubles.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);

/// What to do with a sample after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// The bytes are here.
    Take,
    /// Ask the same peer again after this time.
    AskAgain(Duration),
    /// Read it from the next best source.
    Elsewhere,
}

/// How long a starving consumer waits for a sample that may still arrive, or whose peer is busy.
/// While the consumer is not starving, waiting costs nothing, and a node whose ring reaches far
/// ahead has to wait for samples that other nodes have not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Default for Patience {
    fn default() -> Self {
        // Nodes that train together begin a step together: what one of them lacks is in flight.
        Self(Duration::from_secs(2))
    }
}

impl Patience {
    /// Decides after the answer to the `asked`th request. `starved` says how long the consumer has
    /// been waiting for the batch since the first answer; zero while it is not starving.
    pub fn after(self, answer: Answer, asked: u32, starved: Duration) -> RetryDecision {
        match answer {
            Answer::Here { .. } => RetryDecision::Take,
            Answer::NotHere => RetryDecision::Elsewhere,
            Answer::NotYet | Answer::Busy if starved >= self.0 => RetryDecision::Elsewhere,
            Answer::NotYet | Answer::Busy => {
                let pause = FIRST * 2u32.saturating_pow(asked.saturating_sub(1)).min(64);
                RetryDecision::AskAgain(pause.min(LONGEST))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_may_arrive_is_asked_for_again_but_not_for_ever() {
        let patience = Patience(Duration::from_millis(100));
        let after = |answer, asked, ms| patience.after(answer, asked, Duration::from_millis(ms));
        assert_eq!(after(Answer::Here { digest: 1, version: 1 }, 1, 500), RetryDecision::Take);
        assert_eq!(after(Answer::NotHere, 1, 0), RetryDecision::Elsewhere);
        assert_eq!(after(Answer::NotYet, 1, 0), RetryDecision::AskAgain(FIRST));
        assert_eq!(after(Answer::Busy, 40, 99), RetryDecision::AskAgain(LONGEST));
        assert_eq!(after(Answer::NotYet, 9, 100), RetryDecision::Elsewhere);
    }
}
