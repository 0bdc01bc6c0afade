//! Checks that all ranks run the same job. Each gives the facts that must be equal everywhere; all
//! get the same sentence about what differs.
//!
//! A rank that cannot take part gives the reason instead ([`share`]), so that the others fail at
//! once instead of waiting until the time limit.

use crate::rendezvous::LONGEST_VALUE;
use crate::{NodeId, Rendezvous, RendezvousError};

/// The first byte of what a rank shares: a value follows, or a sentence about why there is none.
const GIVES: u8 = 0;
const REFUSES: u8 = 1;

/// Characters of a value that a sentence shows.
const SHOWN: usize = 80;
/// The longest sentence, in characters.
const SENTENCE: usize = 4096;
/// How many different values a sentence shows; more are counted.
const GROUPS: usize = 4;

/// Gives a value and returns those of all ranks, by rank. If a rank refuses, because it cannot go
/// on or its value is too long for an exchange, all ranks get the same sentence.
pub fn share(
    rendezvous: &dyn Rendezvous,
    what: &str,
    mine: Result<&[u8], &str>,
) -> Result<Vec<Vec<u8>>, RendezvousError> {
    let mine = match mine {
        Ok(value) if value.len() < LONGEST_VALUE => [&[GIVES], value].concat(),
        Ok(value) => refusal(&format!(
            "its value for {what} has {} bytes, and an exchange carries at most {}",
            value.len(),
            LONGEST_VALUE - 1
        )),
        Err(why) => refusal(why),
    };
    let read = |(rank, given): (NodeId, Vec<u8>)| match given.split_first() {
        Some((&GIVES, value)) => Ok(value.to_vec()),
        Some((&REFUSES, why)) => {
            let why = String::from_utf8_lossy(why).replace(char::is_control, "?");
            Err(RendezvousError::Other(format!("rank {rank} cannot take part: {why}")))
        }
        _ => Err(RendezvousError::Other(format!(
            "rank {rank} gave a value that cannot be decoded: run the same version of belady on \
             all ranks"
        ))),
    };
    (0..).zip(rendezvous.exchange(what, &mine)?).map(read).collect()
}

fn refusal(why: &str) -> Vec<u8> {
    let mut refusal = vec![REFUSES];
    refusal.extend(why.chars().take(SENTENCE).collect::<String>().as_bytes());
    refusal
}

/// Checks that all ranks have the same facts, which are names and values.
pub fn agree(
    rendezvous: &dyn Rendezvous,
    what: &str,
    facts: &[(&str, String)],
) -> Result<(), RendezvousError> {
    let mine = postcard::to_stdvec(facts).unwrap_or_default();
    let all = share(rendezvous, what, Ok(&mine))?;
    compare(&all.iter().map(|facts| read(facts)).collect::<Vec<_>>())
}

/// Checks that these facts, by rank, are the same.
pub fn compare(all: &[Vec<(String, String)>]) -> Result<(), RendezvousError> {
    match difference(all) {
        None => Ok(()),
        Some(difference) => {
            Err(RendezvousError::Other(format!("the ranks disagree: {difference}")))
        }
    }
}

/// Returns what rank 0 draws and all use. A restarted rank 0 adopts what the others use.
pub fn drawn(
    rendezvous: &dyn Rendezvous,
    name: &str,
    draw: impl FnOnce() -> Result<Vec<u8>, crate::key::KeyError>,
) -> Result<Vec<u8>, RendezvousError> {
    let fresh = || draw().map_err(|error| RendezvousError::Other(error.to_string()));
    let is_first = rendezvous.world().rank == 0;
    let mine = if is_first { fresh()? } else { vec![] };
    let drawn = rendezvous.broadcast(name, &mine)?;
    let as_used = format!("{name}, as used");
    let all = rendezvous.exchange(&as_used, &drawn)?;
    match all.get(1) {
        Some(theirs) if is_first && *theirs != drawn => {
            let theirs = theirs.clone();
            rendezvous.broadcast(name, &theirs)?;
            rendezvous.exchange(&as_used, &theirs)?;
            Ok(theirs)
        }
        _ => Ok(drawn),
    }
}

/// Reads the facts of one rank. Facts that cannot be decoded are none, which shows as a difference.
fn read(bytes: &[u8]) -> Vec<(String, String)> {
    postcard::from_bytes(bytes).unwrap_or_default()
}

/// Describes what differs, if anything does. It depends on the facts of all ranks alone, so it is
/// the same on every rank.
fn difference(all: &[Vec<(String, String)>]) -> Option<String> {
    let mut names: Vec<&str> = vec![];
    for (name, _) in all.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let differences: Vec<String> =
        names.iter().filter_map(|name| difference_in(name, all)).collect();
    (!differences.is_empty()).then(|| differences.join("; "))
}

fn difference_in(name: &str, all: &[Vec<(String, String)>]) -> Option<String> {
    let value = |facts: &Vec<(String, String)>| {
        facts.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    // In the order in which values first occur.
    let mut groups: Vec<(Option<String>, Vec<NodeId>)> = vec![];
    for (rank, facts) in (0..).zip(all) {
        let value = value(facts);
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((value, vec![rank])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    // Exceptions first.
    groups.sort_by_key(|(_, ranks)| ranks.len());
    let has = |(value, ranks): &(Option<String>, Vec<NodeId>)| {
        let verb = if ranks.len() == 1 { "has" } else { "have" };
        format!("{} {verb} {}", runs(ranks), shown(name, value.as_deref()))
    };
    let (most, others) = groups.split_last()?;
    let mut parts: Vec<String> = others.iter().take(GROUPS - 1).map(has).collect();
    if others.len() > parts.len() {
        parts.push(format!("there are {} more values of it", others.len() - parts.len()));
    }
    // Of two halves, neither is the rest.
    let is_rest = most.1.len() > 1 && most.1.len() > others.iter().map(|(_, it)| it.len()).sum();
    parts.push(match &most.0 {
        Some(value) if is_rest => format!("all others {}", cut(value)),
        _ if is_rest => "all others none".to_owned(),
        _ => has(most),
    });
    Some(parts.join(", "))
}

fn shown(name: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{name} {}", cut(value)),
        None => format!("no {name}"),
    }
}

/// Text from other ranks may contain control characters and may be long.
fn cut(value: &str) -> String {
    let clean = value.chars().map(|it| if it.is_control() { '?' } else { it });
    let mut text: String = clean.take(SHOWN).collect();
    if value.chars().count() > SHOWN {
        text.push_str("...");
    }
    text
}

/// Formats ranks as `ranks 0-3, 7`.
fn runs(ranks: &[NodeId]) -> String {
    let mut runs: Vec<(NodeId, NodeId)> = vec![];
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(NodeId, NodeId)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let mut shown: Vec<String> = runs.iter().take(SHOWN / 8).map(run).collect();
    if runs.len() > shown.len() {
        shown.push("...".to_owned());
    }
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::rendezvous::InProcessRendezvous;

    /// Returns what `work` returns on every rank.
    fn on_all<T: Send>(size: u32, work: impl Fn(&dyn Rendezvous) -> T + Sync) -> Vec<T> {
        let rendezvous = InProcessRendezvous::new(size, Duration::from_mins(1));
        on_ranks(&rendezvous, 0..size, work)
    }

    fn on_ranks<T: Send>(
        rendezvous: &std::sync::Arc<InProcessRendezvous>,
        ranks: impl IntoIterator<Item = u32>,
        work: impl Fn(&dyn Rendezvous) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let spawn = |rank| scope.spawn(move || work(&*rendezvous.member(rank)));
            let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn sentence(values: &[&str]) -> String {
        let outcomes = on_all(values.len() as u32, |rendezvous| {
            let value = values[rendezvous.world().rank as usize].to_owned();
            agree(rendezvous, "job", &[("order", "torch".to_owned()), ("seed", value)])
        });
        let sentences: Vec<_> =
            outcomes.into_iter().map(|it| it.unwrap_err().to_string()).collect();
        assert!(sentences.iter().all(|sentence| *sentence == sentences[0]), "{sentences:?}");
        sentences[0].clone()
    }

    #[test]
    fn all_ranks_get_the_same_sentence_about_what_differs() {
        assert_eq!(
            sentence(&["5", "5", "5", "7"]),
            "the ranks disagree: rank 3 has seed 7, all others 5"
        );
        assert_eq!(
            sentence(&["5", "7"]),
            "the ranks disagree: rank 0 has seed 5, rank 1 has seed 7"
        );
        assert_eq!(
            sentence(&["5", "7", "7", "5"]),
            "the ranks disagree: ranks 0, 3 have seed 5, ranks 1-2 have seed 7"
        );
        let many = sentence(&["1", "2", "3", "4", "5", "6", "6", "6", "6", "6", "6"]);
        assert!(many.ends_with("there are 2 more values of it, all others 6"), "{many}");
        let long = sentence(&["5", &"\u{1b}x".repeat(500)]);
        assert!(long.len() < 300 && !long.contains('\u{1b}'), "{long}");
    }

    #[test]
    fn a_fact_that_some_ranks_lack_is_a_difference() {
        let outcomes = on_all(3, |rendezvous| {
            let facts = [("tiers", "ram".to_owned()), ("tls", "yes".to_owned())];
            agree(rendezvous, "job", &facts[..if rendezvous.world().rank == 2 { 1 } else { 2 }])
        });
        let sentence = outcomes[0].as_ref().unwrap_err().to_string();
        assert_eq!(sentence, "the ranks disagree: rank 2 has no tls, all others yes");
        assert!(
            on_all(3, |rendezvous| agree(rendezvous, "job", &[("a", "b".to_owned())]))
                .iter()
                .all(Result::is_ok)
        );
    }

    /// Draws a number that differs every time.
    fn seed(rendezvous: &dyn Rendezvous) -> Vec<u8> {
        drawn(rendezvous, "seed", || Ok(crate::key::random::<8>()?.to_vec())).unwrap()
    }

    #[test]
    fn all_ranks_use_what_rank_0_draws() {
        let drawn = on_all(4, seed);
        assert!(drawn.iter().all(|one| *one == drawn[0]));
        assert_ne!(drawn, on_all(4, seed));
    }

    #[test]
    fn a_restarted_rank_0_adopts_what_the_others_use() {
        let rendezvous = InProcessRendezvous::new(3, Duration::from_mins(1));
        let first = on_ranks(&rendezvous, 0..3, seed);
        assert_eq!(on_ranks(&rendezvous, [0], seed), first[..1]);
        assert_eq!(
            on_ranks(&rendezvous, [2], seed),
            first[..1],
            "and so does the next rank that is restarted"
        );
    }

    #[test]
    fn a_rank_that_cannot_take_part_fails_all_at_once() {
        let outcomes = on_all(3, |rendezvous| match rendezvous.world().rank {
            1 => share(rendezvous, "caches", Err("its disk is\ngone")),
            _ => share(rendezvous, "caches", Ok(b"mine")),
        });
        for outcome in outcomes {
            let sentence = outcome.unwrap_err().to_string();
            assert_eq!(sentence, "rank 1 cannot take part: its disk is?gone");
        }
        let outcomes = on_all(2, |rendezvous| share(rendezvous, "empty", Ok(b"")).unwrap());
        assert_eq!(outcomes, vec![vec![vec![]; 2]; 2]);
    }

    #[test]
    fn a_value_that_is_too_long_fails_all_ranks_at_once() {
        let outcomes = on_all(3, |rendezvous| {
            let length =
                if rendezvous.world().rank == 2 { LONGEST_VALUE } else { LONGEST_VALUE - 1 };
            share(rendezvous, "caches", Ok(&vec![0; length]))
        });
        for outcome in outcomes {
            let sentence = outcome.unwrap_err().to_string();
            assert!(
                sentence.starts_with("rank 2 cannot take part: its value for caches has"),
                "{sentence}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_difference_is_found_exactly_where_there_is_one(
            values in prop::collection::vec(prop::collection::vec(0u8..3, 2), 1..9)
        ) {
            let all: Vec<Vec<(String, String)>> = values.iter().map(|of_rank| {
                of_rank.iter().enumerate().map(|(at, it)| (format!("f{at}"), it.to_string())).collect()
            }).collect();
            let said = difference(&all);
            for at in 0..2 {
                let differs = values.iter().any(|of_rank| of_rank[at] != values[0][at]);
                let named = said.as_ref().is_some_and(|said| said.contains(&format!("f{at} ")));
                prop_assert_eq!(differs, named, "{:?}", said);
            }
        }

        #[test]
        fn decoding_any_facts_ends(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            read(&bytes);
        }
    }
}
